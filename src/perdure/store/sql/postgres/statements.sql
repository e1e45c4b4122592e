-- Statements of the PostgreSQL backend by name. Locking and reading are never one statement: one that
-- has waited for a row lock sees the new version of that row, but all other rows as they were before.

-- now --
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- server --
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
       current_setting('search_path');

-- lock_rows --
-- The rows of a batch: first those of the holders it claims for, which keeps them from being reaped,
-- then those of its streams, in the order of ids. So no two transactions can deadlock.
WITH alive AS MATERIALIZED (
    SELECT name FROM holder WHERE name = ANY ($2::text[]) ORDER BY name FOR KEY SHARE
)
SELECT sid FROM stream WHERE id = ANY ($1::text[]) AND (SELECT count(*) FROM alive) >= 0
ORDER BY id FOR NO KEY UPDATE;

-- load_rows --
-- The streams, entries and live claimants of a batch at one moment. The version of a stream's row is
-- the transaction that wrote it (xmin).
SELECT s.id, s.sid, s.xmin, s.kind, s.head, s.epoch, s.holder, s.due, s.tries, s.gone,
       s.checksum IS NULL OR s.checksum = stream_checksum(s.sid, s.id, s.kind) AS is_sound,
       NULL::text AS key, NULL::bytea AS data, NULL::text AS listing, NULL::bigint AS at
FROM stream s WHERE s.id = ANY ($1::text[])
UNION ALL
SELECT s.id, e.sid, NULL, e.kind, e.version, NULL, e.state, e.due, NULL, NULL, NULL, e.key, e.data,
       e.listing, e.at
FROM unnest($2::text[], $3::text[]) AS item (kind, key)
JOIN entry e ON e.kind = item.kind AND e.key = item.key
LEFT JOIN stream s ON s.sid = e.sid
UNION ALL
SELECT h.name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM holder h WHERE h.name = ANY ($4::text[]) AND h.until > $5::bigint;

-- load_entries --
SELECT e.kind, e.key, s.id, e.version, e.state, e.due, e.data, e.listing, e.at
FROM unnest($1::text[], $2::text[]) AS item (kind, key)
JOIN entry e ON e.kind = item.kind AND e.key = item.key
LEFT JOIN stream s ON s.sid = e.sid;

-- terminate_stopped --
-- A client that was stopped inside a statement keeps its row locks, and no timeout of the server ends
-- it. Our clients never pause inside a transaction, so one that has paused for this long is terminated.
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
  AND a.wait_event_type = 'Client' AND a.xact_start < clock_timestamp() - interval '4 seconds'
  AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'stream'::regclass);

-- next_sids --
SELECT nextval('stream_sid') FROM generate_series(1, $1::integer);

-- drop_streams --
WITH entries AS (DELETE FROM entry WHERE sid = ANY ($1::bigint[]))
DELETE FROM record WHERE sid = ANY ($1::bigint[]);

-- write --
-- All changes of a batch, if every row that it was judged on is as it was read: the streams have the
-- same version, also those that only guard their entries, the entries have theirs, new rows do not
-- exist, and the holders it claims for are alive. Every row is compared as it is when it is locked,
-- holders first, then streams in the order of ids; nothing else is looked at (READ COMMITTED would
-- show it as it was before the wait for a lock). Returns false if a holder or stream has changed:
-- then nothing is written. For an entry or a new row it is too late for that, and the statement
-- fails with a division by zero. Arrays come as text, and data joined with offsets and sizes, which
-- costs the client much less than arrays.
WITH claimant AS MATERIALIZED (
    SELECT name FROM holder WHERE name = ANY ($2::text::text[]) AND until > $1::bigint
    ORDER BY name FOR KEY SHARE
), kept AS MATERIALIZED (
    SELECT s.sid FROM unnest($3::text::bigint[], $4::text::xid[]) AS read (sid, version)
    JOIN stream s ON s.sid = read.sid AND s.xmin = read.version
    WHERE (SELECT count(*) FROM claimant) = cardinality($2::text::text[])
    ORDER BY s.id FOR NO KEY UPDATE OF s
), same AS MATERIALIZED (
    SELECT (SELECT count(*) FROM kept) = cardinality($3::text::bigint[])
       AND (SELECT count(*) FROM claimant) = cardinality($2::text::text[]) AS ok
), created AS (
    INSERT INTO stream (sid, id, kind, head, epoch, holder, due, tries, gone, checksum)
    SELECT new.*, stream_checksum(new.sid, new.id, new.kind)
    FROM unnest($5::text::bigint[], $6::text::text[], $7::text::text[],
                         $8::text::bigint[], $9::text::bigint[], $10::text::text[],
                         $11::text::bigint[], $12::text::bigint[], $13::text::boolean[])
        AS new (sid, id, kind, head, epoch, holder, due, tries, gone)
    WHERE (SELECT ok FROM same)
    ORDER BY new.id
    ON CONFLICT (id) DO NOTHING RETURNING 1
), changed AS (
    UPDATE stream s
    SET head = n.head, epoch = n.epoch, holder = n.holder, due = n.due, tries = n.tries,
        gone = n.gone, checksum = coalesce(s.checksum, stream_checksum(s.sid, s.id, s.kind))
    FROM unnest($14::text::bigint[], $15::text::bigint[], $16::text::bigint[], $17::text::text[],
                $18::text::bigint[], $19::text::bigint[], $20::text::boolean[])
        AS n (sid, head, epoch, holder, due, tries, gone)
    WHERE s.sid = n.sid AND (SELECT ok FROM same) RETURNING 1
), appended AS (
    INSERT INTO record (sid, seq, type, at, data, checksum)
    SELECT n.sid, n.seq, n.type, n.at, d.data,
           record_checksum(n.sid, n.seq, n.type, n.at, d.data)
    FROM unnest($21::text::bigint[], $22::text::bigint[], $23::text::text[], $24::text::bigint[],
                $25::text::int[], $26::text::int[])
        WITH ORDINALITY AS n (sid, seq, type, at, start, size, place)
    CROSS JOIN LATERAL (SELECT substring($27::bytea FROM n.start FOR n.size) AS data) d
    WHERE (SELECT ok FROM same)
    ORDER BY n.place
    RETURNING 1
), item AS MATERIALIZED (
    SELECT n.*
    FROM unnest($28::text::text[], $29::text::text[], $30::text::bigint[], $31::text::bigint[],
                $32::text::text[], $33::text::bigint[], $34::text::bigint[], $35::text::text[],
                $36::text::bigint[], $37::text::int[], $38::text::int[])
        AS n (kind, key, sid, version, state, due, expect, listing, at, start, size)
    WHERE (SELECT ok FROM same)
), added AS (
    INSERT INTO entry (kind, key, sid, version, state, due, listing, at, data)
    SELECT n.kind, n.key, n.sid, n.version, n.state, n.due, n.listing, n.at,
           substring($39::bytea FROM n.start FOR n.size)
    FROM item n WHERE n.expect = 0
    ORDER BY n.kind, n.key
    ON CONFLICT (kind, key) DO NOTHING RETURNING 1
), put AS (
    UPDATE entry e
    SET sid = n.sid, version = n.version, state = n.state, due = n.due, listing = n.listing,
        at = n.at, data = substring($39::bytea FROM n.start FOR n.size)
    FROM item n
    WHERE n.expect > 0 AND e.kind = n.kind AND e.key = n.key AND e.version = n.expect RETURNING 1
), deleted AS (
    DELETE FROM entry e
    USING unnest($40::text::text[], $41::text::text[], $42::text::bigint[]) AS n (kind, key, expect)
    WHERE e.kind = n.kind AND e.key = n.key AND e.version = n.expect AND (SELECT ok FROM same)
    RETURNING 1
)
SELECT CASE
    WHEN NOT (SELECT ok FROM same) THEN false
    WHEN (SELECT count(*) FROM created) = cardinality($5::text::bigint[])
     AND (SELECT count(*) FROM changed) = cardinality($14::text::bigint[])
     AND (SELECT count(*) FROM appended) = cardinality($21::text::bigint[])
     AND (SELECT count(*) FROM added) + (SELECT count(*) FROM put)
         = cardinality($28::text::text[])
     AND (SELECT count(*) FROM deleted) = cardinality($40::text::text[]) THEN true
    ELSE 1 / (SELECT count(*) FROM kept WHERE sid IS NULL) = 1 END;

-- check_for_work --
-- Whether the holder is alive, any holder has expired, any stream is due; and the time.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
)
SELECT EXISTS (SELECT 1 FROM holder WHERE name = $1 AND until > (SELECT now FROM clock)),
       EXISTS (SELECT 1 FROM holder WHERE until <= (SELECT now FROM clock)),
       EXISTS (SELECT 1 FROM lease
               WHERE kind = $2 AND holder IS NULL AND due <= (SELECT now FROM clock)),
       (SELECT now FROM clock);

-- claim --
-- Locks the holder's own row against a reap: claims of a removed holder could never be reaped. The
-- table of leases only finds the streams; whether one is free and due is decided by its locked row.
-- A damaged row is left alone. Streams with $5 tries or more are suspects: at most $6 of them are
-- claimed, those with the fewest tries and less than $7, or with $8 the first; for the others, streams
-- behind them that are no suspects.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), alive AS MATERIALIZED (
    SELECT name FROM holder WHERE name = $1 AND until > (SELECT now FROM clock) FOR KEY SHARE
), free AS MATERIALIZED (
    SELECT s.sid, s.due, s.tries FROM lease l JOIN stream s ON s.sid = l.sid
    WHERE l.kind = $2 AND l.holder IS NULL AND l.due <= (SELECT now FROM clock)
      AND s.holder IS NULL AND s.due <= (SELECT now FROM clock) AND EXISTS (SELECT 1 FROM alive)
      AND s.kind = $2
      AND (s.checksum IS NULL OR s.checksum = stream_checksum(s.sid, s.id, s.kind))
    ORDER BY l.due LIMIT $3::bigint FOR NO KEY UPDATE OF s SKIP LOCKED
), placed AS (
    SELECT sid, due, tries,
           row_number() OVER (PARTITION BY tries >= $5::bigint ORDER BY tries, due) AS place
    FROM free
), chosen AS MATERIALIZED (
    SELECT sid, due FROM placed
    WHERE tries < $5::bigint OR (place <= $6::bigint AND tries < $7::bigint)
       OR ($8::boolean AND place = 1)
), behind AS MATERIALIZED (
    SELECT s.sid, s.due FROM lease l JOIN stream s ON s.sid = l.sid
    WHERE l.kind = $2 AND l.holder IS NULL AND l.due <= (SELECT now FROM clock)
      AND s.holder IS NULL AND s.due <= (SELECT now FROM clock)
      AND s.kind = $2 AND s.tries < $5::bigint AND s.sid NOT IN (SELECT sid FROM chosen)
      AND (s.checksum IS NULL OR s.checksum = stream_checksum(s.sid, s.id, s.kind))
    ORDER BY l.due
    LIMIT CASE WHEN (SELECT count(*) FROM free) < $3::bigint THEN 0
               ELSE $3::bigint - (SELECT count(*) FROM chosen) END
    FOR NO KEY UPDATE OF s SKIP LOCKED
), claimed AS (
    UPDATE stream s
    SET holder = $1, epoch = s.epoch + 1, due = NULL, tries = s.tries + 1
    FROM (TABLE chosen UNION ALL TABLE behind) AS free WHERE s.sid = free.sid
    RETURNING s.id, s.epoch, s.head, s.tries, free.due
)
SELECT a.name, (SELECT now FROM clock), t.id, t.epoch, t.head, t.tries
FROM alive a LEFT JOIN claimed t ON true ORDER BY t.due;

-- claim_these --
-- Claims those of the named streams that are due, free and tried less often than $5, locked in the order of ids, as batches
-- lock them. Returns the columns of claim, and whether any holder has expired.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), alive AS MATERIALIZED (
    SELECT name FROM holder WHERE name = $1 AND until > (SELECT now FROM clock) FOR KEY SHARE
), free AS MATERIALIZED (
    SELECT sid FROM stream
    WHERE id = ANY ($3::text[]) AND kind = $2 AND holder IS NULL AND tries < $5::bigint
      AND due <= (SELECT now FROM clock) AND EXISTS (SELECT 1 FROM alive)
      AND (checksum IS NULL OR checksum = stream_checksum(sid, id, kind))
    ORDER BY id FOR NO KEY UPDATE
), claimed AS (
    UPDATE stream s
    SET holder = $1, epoch = s.epoch + 1, due = NULL, tries = s.tries + 1
    FROM free WHERE s.sid = free.sid
    RETURNING s.id, s.epoch, s.head, s.tries
)
SELECT a.name, c.now, t.id, t.epoch, t.head, t.tries,
       EXISTS (SELECT 1 FROM holder WHERE until <= c.now)
FROM clock c LEFT JOIN alive a ON true LEFT JOIN claimed t ON true;

-- lock_schema --
-- Until the transaction ends no step can be applied that removes something; other steps can.
SELECT number FROM schema_step WHERE number = 1 FOR KEY SHARE;

-- lock_programs --
SELECT number FROM schema_step WHERE number = 1 FOR UPDATE;

-- newer_schema --
SELECT number, oldest FROM schema_step WHERE oldest > $1::integer ORDER BY number DESC LIMIT 1;

-- join --
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
)
INSERT INTO holder (name, until, pulse, program)
SELECT $1, now + $2::bigint, $3::bigint, $4::integer FROM clock
ON CONFLICT DO NOTHING RETURNING until;

-- renew --
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
)
UPDATE holder SET until = (SELECT now FROM clock) + $2::bigint
WHERE name = $1 AND NOT EXISTS (SELECT 1 FROM schema_step WHERE oldest > holder.program)
RETURNING until;

-- lock_dead --
SELECT name FROM holder WHERE until <= $1::bigint OR name = ANY ($2::text[])
FOR UPDATE SKIP LOCKED;

-- lost_holders --
-- Holders whose rows are lost: nothing else would end their leases. A claim locks the row of its
-- holder, and a row is removed after its leases.
SELECT DISTINCT holder FROM lease l
WHERE holder IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holder h WHERE h.name = l.holder);

-- lock_holder --
SELECT name FROM holder WHERE name = $1 FOR UPDATE;

-- free_streams --
-- Due now, with a back-off once drivers keep dying on the stream. Streams that are being written are
-- left for the next reap.
WITH held AS MATERIALIZED (
    SELECT s.sid FROM lease l JOIN stream s ON s.sid = l.sid
    WHERE l.holder = ANY ($1::text[]) AND s.holder = ANY ($1::text[])
    ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE stream s
SET holder = NULL, epoch = s.epoch + 1,
    due = $2::bigint + CASE WHEN s.tries < $3::bigint THEN 0
                            ELSE least((1000 << least(s.tries, 20)::integer), $4::bigint) END
FROM held WHERE s.sid = held.sid;

-- free_all_streams --
WITH held AS MATERIALIZED (
    SELECT s.sid FROM lease l JOIN stream s ON s.sid = l.sid
    WHERE l.holder = ANY ($1::text[]) AND s.holder = ANY ($1::text[])
    ORDER BY s.id FOR NO KEY UPDATE OF s
)
UPDATE stream s
SET holder = NULL, epoch = s.epoch + 1,
    due = $2::bigint + CASE WHEN s.tries < $3::bigint THEN 0
                            ELSE least((1000 << least(s.tries, 20)::integer), $4::bigint) END
FROM held WHERE s.sid = held.sid;

-- free_unknown_claims --
-- Streams of a holder whose claim got no reply: due now, and not counted as a try.
WITH held AS MATERIALIZED (
    SELECT s.sid FROM lease l JOIN stream s ON s.sid = l.sid
    WHERE l.holder = $1 AND s.holder = $1 ORDER BY s.id FOR NO KEY UPDATE OF s
)
UPDATE stream s
SET holder = NULL, epoch = s.epoch + 1, due = $2::bigint, tries = greatest(s.tries - 1, 0)
FROM held WHERE s.sid = held.sid;

-- undo_claims --
-- Streams that commits without a reply have claimed: due now, and not counted as a try.
WITH held AS MATERIALIZED (
    SELECT s.sid FROM stream s
    JOIN unnest($1::text[], $2::bigint[]) AS lease (id, epoch) ON lease.id = s.id
    WHERE s.holder = $3 AND s.epoch = lease.epoch ORDER BY s.id FOR NO KEY UPDATE OF s
)
UPDATE stream s
SET holder = NULL, epoch = s.epoch + 1, due = $4::bigint, tries = greatest(s.tries - 1, 0)
FROM held WHERE s.sid = held.sid;

-- remove_holders --
DELETE FROM holder h WHERE name = ANY ($1::text[])
AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.holder = h.name);

-- holders_without_lock --
-- Holders whose connection has ended; a frozen process still has its connection.
SELECT name FROM holder
WHERE pulse IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND ((classid::bigint << 32) | objid::bigint) = holder.pulse
);

-- read --
SELECT s.head, s.holder, s.due, s.tries, s.gone,
       s.checksum IS NULL OR s.checksum = stream_checksum(s.sid, s.id, s.kind),
       r.checksum = record_checksum(r.sid, r.seq, r.type, r.at, r.data),
       r.type, r.data, r.at, r.seq, r.pos
FROM stream s LEFT JOIN record r ON r.sid = s.sid AND r.seq > $2 AND r.seq <= $3
WHERE s.id = $1 ORDER BY r.seq;

-- feed --
-- Records after a position, and the last visible position of the same moment.
SELECT latest.pos, r.type, r.data, r.at, r.seq, r.pos, s.id
FROM (SELECT coalesce(max(pos), 0) AS pos FROM record) AS latest
LEFT JOIN LATERAL (
    SELECT * FROM record WHERE pos > $1 ORDER BY pos LIMIT $2
) r ON true
LEFT JOIN stream s ON s.sid = r.sid
ORDER BY r.pos;

-- feed_end --
SELECT coalesce(max(pos), 0) FROM record;

-- appending --
-- Transactions that may have taken positions: they take this lock before, and keep it until their
-- records are visible. Never one statement with a query of records, whose snapshot would be older.
SELECT virtualtransaction FROM pg_locks
WHERE relation = 'record'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- states --
SELECT kind, state, count(*) FROM entry WHERE kind = ANY ($1::text[]) GROUP BY kind, state;

-- listings --
SELECT kind, listing, count(*) FROM entry
WHERE kind = ANY ($1::text[]) AND listing IS NOT NULL GROUP BY kind, listing;

-- overdue --
SELECT kind, count(*) FROM entry WHERE kind = ANY ($1::text[]) AND due <= $2 GROUP BY kind;

-- totals --
SELECT (SELECT count(*) FROM lease WHERE holder IS NOT NULL),
       (SELECT count(*) FROM lease WHERE holder IS NULL AND due <= $1),
       ARRAY(SELECT name FROM holder WHERE until > $1 ORDER BY name),
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM record_pos_seq);

-- snapshot --
SELECT pg_current_snapshot()::text;

-- notify --
SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload;

-- take_liveness_lock --
SELECT pg_try_advisory_lock($1::bigint);

-- release_liveness_lock --
SELECT pg_advisory_unlock($1::bigint);

-- entries_of --
SELECT e.kind, e.key, s.id, e.version, e.state, e.due, e.data, e.listing, e.at
FROM stream s JOIN entry e ON e.sid = s.sid WHERE s.id = $1 ORDER BY e.kind, e.key;

-- streams --
-- The head of a gone stream was deleted with its records.
SELECT id, kind, CASE WHEN gone THEN 0 ELSE head END, epoch, holder, due, gone,
       checksum IS NULL OR checksum = stream_checksum(sid, id, kind)
FROM stream WHERE id > $1 ORDER BY id LIMIT $2::bigint;

-- restore_lock --
-- The row of a stream that is to be written again, if there is one.
SELECT sid FROM stream WHERE sid = $1 FOR UPDATE;

-- restore_parked --
-- Its lease is written again with its row.
WITH parked AS (UPDATE stream SET holder = NULL, due = NULL WHERE sid = $1)
DELETE FROM lease WHERE sid = $1;

-- restore_stream --
INSERT INTO stream (sid, id, kind, head, epoch, holder, due, tries, gone, checksum)
VALUES ($1, $2::text, $3::text, $4, $5, NULL, $6, 0, false, stream_checksum($1, $2::text, $3::text))
ON CONFLICT (sid) DO UPDATE
SET id = excluded.id, kind = excluded.kind, head = excluded.head, epoch = excluded.epoch,
    holder = NULL, due = excluded.due, tries = 0, gone = false, checksum = excluded.checksum;

-- move_lease --
-- Everything that has the number of a stream is deleted once it is in a file.
DELETE FROM lease WHERE sid = $1 RETURNING *;

-- move_record --
DELETE FROM record WHERE sid = $1 RETURNING *;

-- move_entry --
DELETE FROM entry WHERE sid = $1 RETURNING *;

-- move_stream --
DELETE FROM stream WHERE sid = $1 RETURNING *;

-- remove_entries --
DELETE FROM entry e USING unnest($1::text[], $2::text[]) AS item (kind, key)
WHERE e.kind = item.kind AND e.key = item.key AND e.sid <> $3::bigint;
