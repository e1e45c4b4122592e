-- Streams with their records, the entries that find them again, and who is alive.
-- Instants are milliseconds since 1970.

-- One row per session, delivery or lock; never removed, only marked gone.
-- Its head is max(record.seq): an append then changes no row, it only adds one.
CREATE TABLE stream (
    sid     INTEGER PRIMARY KEY,
    id      TEXT NOT NULL UNIQUE,
    kind    TEXT NOT NULL,
    epoch   INTEGER NOT NULL DEFAULT 0,  -- counts claims; fences those who lost the stream
    holder  TEXT,                        -- who drives it now
    due     INTEGER,                     -- from when on it may be claimed
    tries   INTEGER NOT NULL DEFAULT 0,  -- claims since a driver last wrote
    gone    INTEGER NOT NULL DEFAULT 0
);

-- A stream that is parked without a timer is in neither of these, however many there are.
CREATE INDEX stream_due ON stream (kind, due) WHERE holder IS NULL AND due IS NOT NULL;
CREATE INDEX stream_holder ON stream (holder) WHERE holder IS NOT NULL;

-- Append-only, in the order of commits over all streams: pos is the feed. Not clustered by stream,
-- which would touch one more page with every append; a pos is never used again (AUTOINCREMENT).
CREATE TABLE record (
    pos   INTEGER PRIMARY KEY AUTOINCREMENT,
    sid   INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    type  TEXT NOT NULL,
    at    INTEGER NOT NULL,
    data  BLOB NOT NULL,
    UNIQUE (sid, seq)
);

-- A settled entry has no due time, so that entry_due holds only what can still expire.
CREATE TABLE entry (
    kind     TEXT NOT NULL,
    key      TEXT NOT NULL,
    sid      INTEGER NOT NULL,
    version  INTEGER NOT NULL,
    state    TEXT NOT NULL,
    due      INTEGER,
    data     BLOB NOT NULL,
    PRIMARY KEY (kind, key)
);

CREATE INDEX entry_due ON entry (kind, due, key) WHERE due IS NOT NULL;
CREATE INDEX entry_stream ON entry (sid, kind, state);
CREATE INDEX entry_state ON entry (kind, state, key);

-- One row per running worker: the heartbeat of all it holds.
CREATE TABLE holder (
    name   TEXT PRIMARY KEY,
    until  INTEGER NOT NULL
);
