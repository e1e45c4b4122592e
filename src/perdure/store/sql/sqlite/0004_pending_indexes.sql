-- Indexes that serve the view of pending calls by session, status and deadline. SQLite uses an index
-- on an expression where a query has the same expression, so the view repeats each of them.
-- Data that is not JSON has no place in them, and no row of the view: a store accepts any data.
DROP VIEW pending_tool_calls;

-- Each begins with the kind: without statistics SQLite expects less from a single expression than
-- from any other index on the kind.
CREATE INDEX pending_call_session
    ON entry (kind, json_extract(CAST(data AS TEXT), '$.sessionID'),
              coalesce(json_extract(CAST(data AS TEXT), '$.status'), 'waiting'))
    WHERE kind = 'pending' AND json_valid(CAST(data AS TEXT));
CREATE INDEX pending_call_status
    ON entry (kind, coalesce(json_extract(CAST(data AS TEXT), '$.status'), 'waiting'))
    WHERE kind = 'pending' AND json_valid(CAST(data AS TEXT));
CREATE INDEX pending_call_timeout
    ON entry (kind, json_extract(CAST(data AS TEXT), '$.timeout'))
    WHERE kind = 'pending' AND json_valid(CAST(data AS TEXT));

CREATE VIEW pending_tool_calls AS
SELECT key AS id,
       json_extract(CAST(data AS TEXT), '$.sessionID') AS session_id,
       json_extract(CAST(data AS TEXT), '$.messageID') AS message_id,
       json_extract(CAST(data AS TEXT), '$.callID') AS call_id,
       json_extract(CAST(data AS TEXT), '$.tool') AS tool,
       json_extract(CAST(data AS TEXT), '$.input') AS input,                      -- JSON
       coalesce(json_extract(CAST(data AS TEXT), '$.status'), 'waiting') AS status,
       json_extract(CAST(data AS TEXT), '$.externalRef') AS external_ref,
       json_extract(CAST(data AS TEXT), '$.timeout') AS timeout,                  -- of expiry
       json_extract(CAST(data AS TEXT), '$.time.created') AS created_at,
       json_extract(CAST(data AS TEXT), '$.time.started') AS started_at,
       json_extract(CAST(data AS TEXT), '$.time.completed') AS completed_at,
       json_extract(CAST(data AS TEXT), '$.result') AS result,                    -- JSON
       json_extract(CAST(data AS TEXT), '$.error') AS error
FROM entry WHERE kind = 'pending' AND json_valid(CAST(data AS TEXT));
