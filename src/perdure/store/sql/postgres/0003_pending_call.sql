-- The pending calls by session, status and deadline: a narrow table that a trigger keeps in the same
-- transaction, and that serves the view. Indexes on expressions of entry.data would do, too, but then
-- no update of an entry, also of a session, could stay within its page (HOT).
CREATE TABLE pending_call (
    id          text COLLATE "C" PRIMARY KEY,
    session_id  text,
    status      text NOT NULL,
    timeout     bigint
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX pending_call_session ON pending_call (session_id, status);
CREATE INDEX pending_call_status ON pending_call (status);
CREATE INDEX pending_call_timeout ON pending_call (timeout) WHERE timeout IS NOT NULL;

-- JSON, or NULL for data that is not JSON: a store accepts any data. PostgreSQL reads no string with
-- the character zero, so that it becomes the replacement character here.
CREATE FUNCTION pending_json(data bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    content text;
BEGIN
    content := convert_from(data, 'UTF8');
    IF position('\u0000' IN content) > 0 THEN
        content := regexp_replace(content, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g');
    END IF;
    RETURN content::json;
EXCEPTION WHEN others THEN
    RETURN NULL;
END
$$;

CREATE FUNCTION pending_timeout(call json) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN call ->> 'timeout' ~ '^-?[0-9]{1,18}$' THEN (call ->> 'timeout')::bigint END
$$;

CREATE FUNCTION keep_pending_call() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    call json;
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM pending_call WHERE id = OLD.key;
        RETURN NULL;
    END IF;
    call := pending_json(NEW.data);
    INSERT INTO pending_call AS present (id, session_id, status, timeout)
    VALUES (NEW.key, call ->> 'sessionID', coalesce(call ->> 'status', 'waiting'),
            pending_timeout(call))
    ON CONFLICT (id) DO UPDATE
    SET session_id = excluded.session_id, status = excluded.status, timeout = excluded.timeout
    WHERE (present.session_id, present.status, present.timeout)
       IS DISTINCT FROM (excluded.session_id, excluded.status, excluded.timeout);
    RETURN NULL;
END
$$;

CREATE TRIGGER entry_written AFTER INSERT OR UPDATE ON entry
    FOR EACH ROW WHEN (NEW.kind = 'pending') EXECUTE FUNCTION keep_pending_call();
CREATE TRIGGER entry_deleted AFTER DELETE ON entry
    FOR EACH ROW WHEN (OLD.kind = 'pending') EXECUTE FUNCTION keep_pending_call();

INSERT INTO pending_call (id, session_id, status, timeout)
SELECT key, call ->> 'sessionID', coalesce(call ->> 'status', 'waiting'),
       pending_timeout(call)
FROM (SELECT key, pending_json(data) AS call FROM entry WHERE kind = 'pending') calls;

CREATE OR REPLACE VIEW pending_tool_calls AS
SELECT p.id,
       p.session_id,
       call ->> 'messageID' AS message_id,
       call ->> 'callID' AS call_id,
       call ->> 'tool' AS tool,
       call -> 'input' AS input,
       p.status,
       call ->> 'externalRef' AS external_ref,
       p.timeout,                                                 -- the instant of expiry
       (call -> 'time' ->> 'created')::bigint AS created_at,
       (call -> 'time' ->> 'started')::bigint AS started_at,
       (call -> 'time' ->> 'completed')::bigint AS completed_at,
       call -> 'result' AS result,
       call ->> 'error' AS error
FROM pending_call p
JOIN entry e ON e.kind = 'pending' AND e.key = p.id
CROSS JOIN LATERAL (SELECT pending_json(e.data) AS call) c
WHERE call IS NOT NULL;
