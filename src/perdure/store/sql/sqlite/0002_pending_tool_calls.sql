-- The pending calls as a table that any SQLite tool can read: a view over their entries, never a
-- second copy. By session, status and deadline perdure itself finds them through entry_stream,
-- entry_state and entry_due. Needs SQLite's JSON functions; without them only this view fails.
CREATE VIEW pending_tool_calls AS
SELECT key AS id,
       json_extract(call, '$.sessionID') AS session_id,
       json_extract(call, '$.messageID') AS message_id,
       json_extract(call, '$.callID') AS call_id,
       json_extract(call, '$.tool') AS tool,
       json_extract(call, '$.input') AS input,                         -- JSON
       coalesce(json_extract(call, '$.status'), 'waiting') AS status,  -- the default is left out
       json_extract(call, '$.externalRef') AS external_ref,
       json_extract(call, '$.timeout') AS timeout,                     -- the instant of expiry
       json_extract(call, '$.time.created') AS created_at,
       json_extract(call, '$.time.started') AS started_at,
       json_extract(call, '$.time.completed') AS completed_at,
       json_extract(call, '$.result') AS result,                       -- JSON
       json_extract(call, '$.error') AS error
FROM (SELECT key, CAST(data AS TEXT) AS call FROM entry WHERE kind = 'pending');
