-- Streams with their records, the entries that find them again, and who is alive.
-- Instants are milliseconds since 1970. Texts compare byte by byte, whatever the database's locale.

-- One row per session, delivery or lock; never removed, only marked gone. Whoever changes anything
-- of a stream holds its row's lock, so all that a commit is judged by stands in it.
CREATE TABLE stream (
    sid     bigint PRIMARY KEY,              -- from stream_sid, taken in advance
    id      text COLLATE "C" NOT NULL UNIQUE,
    kind    text COLLATE "C" NOT NULL,
    head    bigint NOT NULL DEFAULT 0,       -- seq of its last record
    epoch   bigint NOT NULL DEFAULT 0,       -- counts claims; fences those who lost the stream
    holder  text COLLATE "C",                -- who drives it now
    due     bigint,                          -- from when on it may be claimed
    tries   bigint NOT NULL DEFAULT 0,       -- claims since a driver last wrote
    gone    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE SEQUENCE stream_sid OWNED BY stream.sid;

-- A stream that is parked without a timer is in neither of these, however many there are.
CREATE INDEX stream_due ON stream (kind, due) WHERE holder IS NULL AND due IS NOT NULL;
CREATE INDEX stream_holder ON stream (holder) WHERE holder IS NOT NULL;

-- Append-only. Positions are taken under the stream's lock, so they are in the stream's order; they
-- become visible out of order over several streams, and those of what was rolled back are missing.
CREATE TABLE record (
    sid   bigint NOT NULL,
    seq   bigint NOT NULL,
    pos   bigint GENERATED ALWAYS AS IDENTITY,
    at    bigint NOT NULL,
    type  text COLLATE "C" NOT NULL,
    data  bytea NOT NULL,
    PRIMARY KEY (sid, seq)
);

CREATE UNIQUE INDEX record_pos ON record (pos);

-- A settled entry has no due time, so that entry_due holds only what can still expire.
CREATE TABLE entry (
    kind     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    sid      bigint NOT NULL,
    version  bigint NOT NULL,
    state    text COLLATE "C" NOT NULL,
    due      bigint,
    data     bytea NOT NULL,
    PRIMARY KEY (kind, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX entry_due ON entry (kind, due, key) WHERE due IS NOT NULL;
CREATE INDEX entry_stream ON entry (sid, kind, state);
CREATE INDEX entry_state ON entry (kind, state, key);

-- One row per running worker: the heartbeat of all it holds.
CREATE TABLE holder (
    name     text COLLATE "C" PRIMARY KEY,
    until    bigint NOT NULL,
    pulse    bigint,              -- the advisory lock that it keeps while it lives, if it does that
    program  integer NOT NULL     -- the schema that it knows
) WITH (fillfactor = 50);
