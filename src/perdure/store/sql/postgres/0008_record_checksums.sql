-- A checksum over all columns of a record but its position, by which a reader notices content that
-- has changed. The server computes it, as it does that of a stream. NULL: a program without checksums
-- has written the row.
CREATE FUNCTION record_checksum(sid bigint, seq bigint, type text, at bigint, data bytea) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT substring(sha256(convert_to(sid || ' ' || seq || ' ' || at || ' ' || type || E'\n', 'UTF8')
                            || data) FROM 1 FOR 8)
$$;

ALTER TABLE record ADD COLUMN IF NOT EXISTS checksum bytea;
