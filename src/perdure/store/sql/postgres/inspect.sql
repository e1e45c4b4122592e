-- Read-only queries about a PostgreSQL store that other processes may be using.

-- inspect_closed --
-- Whether the schema exists and the user may not use it.
SELECT NOT coalesce((SELECT has_schema_privilege(oid, 'USAGE')
                     FROM pg_namespace WHERE nspname = $1), true);

-- inspect_schema --
SELECT coalesce(max(number), 0) FROM schema_step;

-- inspect_counts --
SELECT kind, state, count(*) FROM entry GROUP BY kind, state;

-- inspect_holders --
SELECT name, until, (SELECT count(*) FROM lease l WHERE l.holder = h.name)
FROM holder h ORDER BY until;

-- inspect_due --
SELECT s.id, l.kind, l.due, count(*) OVER () FROM lease l JOIN stream s ON s.sid = l.sid
WHERE l.holder IS NULL AND l.due <= $1 AND l.kind LIKE 'session:%'
ORDER BY l.due LIMIT $2;

-- inspect_due_kinds --
SELECT kind, count(*) FROM lease
WHERE holder IS NULL AND due <= $1 AND kind LIKE 'session:%' GROUP BY kind;

-- inspect_newest --
SELECT max(at) FROM (SELECT at FROM record ORDER BY pos DESC LIMIT $1) newest;

-- inspect_tables --
-- Present sizes; rows as in the server's statistics.
SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup,
       floor(extract(epoch FROM greatest(last_vacuum, last_autovacuum)) * 1000)::bigint
FROM pg_stat_user_tables WHERE schemaname = $1 ORDER BY relname;

-- inspect_numbers --
-- Streams that are not gone, and how many records each has; gone ones if something is left of them.
SELECT s.sid, s.head FROM stream s
WHERE NOT s.gone OR EXISTS (SELECT 1 FROM record r WHERE r.sid = s.sid)
   OR EXISTS (SELECT 1 FROM entry e WHERE e.sid = s.sid)
ORDER BY s.sid;

-- inspect_lost --
-- Streams whose rows are lost.
SELECT sid, count(*) FROM record r WHERE NOT EXISTS (SELECT 1 FROM stream s WHERE s.sid = r.sid)
GROUP BY sid
UNION ALL
SELECT DISTINCT e.sid, 0 FROM entry e
WHERE NOT EXISTS (SELECT 1 FROM stream s WHERE s.sid = e.sid)
  AND NOT EXISTS (SELECT 1 FROM record r WHERE r.sid = e.sid)
ORDER BY sid;

-- inspect_entries --
SELECT e.key, s.id, e.version, e.state, e.due, e.data, e.sid
FROM entry e LEFT JOIN stream s ON s.sid = e.sid
WHERE e.kind = $1 AND ($2::text IS NULL OR e.state = $2) AND e.key > $3
ORDER BY e.key LIMIT $4;

-- inspect_names --
SELECT sid, id FROM stream WHERE sid = ANY ($1::bigint[]);

-- inspect_number --
SELECT sid FROM stream WHERE id = $1;

-- inspect_rows --
-- The checksum is read as JSON: an older schema does not have it. The lease must say the same.
SELECT s.sid, s.id, s.kind, s.head, s.epoch, s.gone, s.holder,
       (SELECT until FROM holder WHERE name = s.holder), s.due,
       to_jsonb(s) ->> 'checksum',
       CASE WHEN s.holder IS NULL AND s.due IS NULL THEN l.sid IS NULL
            ELSE l.sid IS NOT NULL AND l.kind = s.kind AND l.holder IS NOT DISTINCT FROM s.holder
             AND l.due IS NOT DISTINCT FROM CASE WHEN s.holder IS NULL THEN s.due END END
FROM stream s LEFT JOIN lease l ON l.sid = s.sid WHERE s.sid = ANY ($1::bigint[]);

-- inspect_logs --
-- In an older schema, `checksum` is not the record's, but NULL.
SELECT r.* FROM (SELECT NULL::bytea AS checksum) older CROSS JOIN LATERAL (
    SELECT sid, seq, type, at, data, checksum FROM record WHERE sid = ANY ($1::bigint[])
) r ORDER BY r.sid, r.seq;

-- inspect_of_streams --
-- In an older schema, `listing` is not the entry's, but that of a program without listings.
SELECT e.* FROM (SELECT '?'::text AS listing) older CROSS JOIN LATERAL (
    SELECT sid, kind, key, version, data, listing FROM entry WHERE sid = ANY ($1::bigint[])
) e ORDER BY e.sid, e.kind, e.key;

-- inspect_settings --
SELECT name, setting FROM pg_settings
WHERE name IN ('server_version', 'server_version_num', 'fsync', 'full_page_writes',
               'synchronous_commit', 'autovacuum', 'synchronous_standby_names');

-- inspect_indexes --
SELECT c.relname, i.indisvalid AND i.indisready FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1;

-- inspect_blockers --
-- Old snapshots, prepared transactions and idle slots that keep a vacuum from removing dead rows.
SELECT 'transaction', pid::text,
       floor(extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint
FROM pg_stat_activity
WHERE xact_start < clock_timestamp() - $1::bigint * interval '1 millisecond'
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type = 'client backend'
  AND datname = current_database()
UNION ALL
SELECT 'prepared transaction', gid,
       floor(extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint
FROM pg_prepared_xacts
WHERE prepared < clock_timestamp() - $1::bigint * interval '1 millisecond'
  AND database = current_database()
UNION ALL
SELECT 'replication slot', slot_name, NULL
FROM pg_replication_slots WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL);

-- inspect_replicas --
SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication;
