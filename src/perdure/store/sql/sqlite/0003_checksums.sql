-- Checksums over all columns of a row (and the stream's number), by which a reader notices content
-- that has changed under an intact b-tree. NULL: the row was written before there were checksums.
ALTER TABLE record ADD COLUMN crc INTEGER;
ALTER TABLE entry ADD COLUMN crc INTEGER;
