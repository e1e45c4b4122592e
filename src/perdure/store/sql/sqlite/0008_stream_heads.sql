-- The head of a stream, by which a loss of its last records is noticed. NULL: it was erased.
ALTER TABLE stream ADD COLUMN head INTEGER;

UPDATE stream SET head = (SELECT max(seq) FROM record WHERE record.sid = stream.sid)
WHERE gone = 0;
