-- A checksum over what a stream is: its number, name and kind, and whether it was erased. Claims and
-- commits change the other columns all the time; their types are checked instead. NULL: the row was
-- written before there were checksums, and gets one when it is written again.
ALTER TABLE stream ADD COLUMN crc INTEGER;
