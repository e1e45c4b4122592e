-- The pending calls as a table that any SQL tool can read: a view over their entries, never a second
-- copy. By session, status and deadline perdure itself finds them through entry_stream,
-- entry_state and entry_due.
CREATE VIEW pending_tool_calls AS
SELECT key AS id,
       call ->> 'sessionID' AS session_id,
       call ->> 'messageID' AS message_id,
       call ->> 'callID' AS call_id,
       call ->> 'tool' AS tool,
       call -> 'input' AS input,
       coalesce(call ->> 'status', 'waiting') AS status,          -- the default is left out
       call ->> 'externalRef' AS external_ref,
       (call ->> 'timeout')::bigint AS timeout,                   -- the instant of expiry
       (call -> 'time' ->> 'created')::bigint AS created_at,
       (call -> 'time' ->> 'started')::bigint AS started_at,
       (call -> 'time' ->> 'completed')::bigint AS completed_at,
       call -> 'result' AS result,
       call ->> 'error' AS error
FROM (SELECT key, convert_from(data, 'UTF8')::json AS call FROM entry WHERE kind = 'pending') calls;
