-- The streams that are held or due, in a narrow table of their own that a trigger keeps in the same
-- transaction. Without an index over its own columns every update of a stream's row, of which a
-- session needs several for each result, can stay within its page (HOT).
CREATE TABLE lease (
    sid     bigint PRIMARY KEY,
    kind    text COLLATE "C" NOT NULL,
    holder  text COLLATE "C",
    due     bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX lease_due ON lease (kind, due) WHERE holder IS NULL;
CREATE INDEX lease_holder ON lease (holder) WHERE holder IS NOT NULL;

CREATE FUNCTION keep_lease() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM lease WHERE sid = OLD.sid;
    ELSIF NEW.holder IS NULL AND NEW.due IS NULL THEN
        DELETE FROM lease WHERE sid = NEW.sid;
    ELSE
        INSERT INTO lease (sid, kind, holder, due)
        VALUES (NEW.sid, NEW.kind, NEW.holder, CASE WHEN NEW.holder IS NULL THEN NEW.due END)
        ON CONFLICT (sid) DO UPDATE SET holder = excluded.holder, due = excluded.due;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER stream_added AFTER INSERT ON stream
    FOR EACH ROW WHEN (NEW.holder IS NOT NULL OR NEW.due IS NOT NULL)
    EXECUTE FUNCTION keep_lease();
CREATE TRIGGER stream_changed AFTER UPDATE ON stream
    FOR EACH ROW WHEN (OLD.holder IS DISTINCT FROM NEW.holder OR OLD.due IS DISTINCT FROM NEW.due)
    EXECUTE FUNCTION keep_lease();
CREATE TRIGGER stream_removed AFTER DELETE ON stream
    FOR EACH ROW WHEN (OLD.holder IS NOT NULL OR OLD.due IS NOT NULL)
    EXECUTE FUNCTION keep_lease();

INSERT INTO lease (sid, kind, holder, due)
SELECT sid, kind, holder, CASE WHEN holder IS NULL THEN due END FROM stream
WHERE holder IS NOT NULL OR due IS NOT NULL;
