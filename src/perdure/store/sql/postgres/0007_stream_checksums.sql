-- A checksum over what a stream is: its number, name and kind. Claims and commits change the other
-- columns all the time, and the server checks their types. The server computes it, because a claim
-- compares it before it changes the row. NULL: a program without checksums has written the row.
CREATE FUNCTION stream_checksum(sid bigint, id text, kind text) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT substring(sha256(convert_to(sid || ' ' || kind || E'\n' || id, 'UTF8')) FROM 1 FOR 8)
$$;

ALTER TABLE stream ADD COLUMN IF NOT EXISTS checksum bytea;
