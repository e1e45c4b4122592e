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

-- inspect_holes --
SELECT s.id, s.head - count(r.seq) FROM stream s LEFT JOIN record r ON r.sid = s.sid
WHERE NOT s.gone GROUP BY s.sid, s.id, s.head HAVING s.head <> count(r.seq) ORDER BY s.id;

-- inspect_records --
SELECT r.pos, s.id, r.seq, r.type, r.at, r.data FROM record r JOIN stream s ON s.sid = r.sid
WHERE r.pos > $1 ORDER BY r.pos LIMIT $2;

-- inspect_entries --
SELECT e.key, s.id, e.version, e.state, e.due, e.data
FROM entry e JOIN stream s ON s.sid = e.sid
WHERE e.kind = $1 AND ($2::text IS NULL OR e.state = $2) AND e.key > $3
ORDER BY e.key LIMIT $4;

-- inspect_streams --
SELECT id FROM stream WHERE NOT gone ORDER BY sid;

-- inspect_stream --
SELECT sid, kind, head, epoch, gone, holder, (SELECT until FROM holder WHERE name = s.holder)
FROM stream s WHERE id = $1;

-- inspect_log --
SELECT seq, type, at, data FROM record WHERE sid = $1 ORDER BY seq;

-- inspect_of_stream --
SELECT kind, key, version, data FROM entry WHERE sid = $1 ORDER BY kind, key;

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
