-- Listings: entries of a kind in the order of an instant or of their due times, so that a page costs
-- the same however many entries there are. NULL: the entry is in none.
ALTER TABLE entry ADD COLUMN IF NOT EXISTS listing text COLLATE "C";
ALTER TABLE entry ADD COLUMN IF NOT EXISTS at bigint;

-- Pending calls and sessions of earlier programs. One whose data is not JSON comes first.
UPDATE entry SET listing = '?', at = 0 WHERE kind IN ('pending', 'session');
UPDATE entry e SET
    listing = CASE WHEN state = 'open' THEN 'open/' || (call ->> 'kind') ELSE 'settled' END,
    at = coalesce(CASE WHEN state <> 'open' THEN (call -> 'time' ->> 'completed')::bigint END,
                  (call -> 'time' ->> 'created')::bigint)
FROM (SELECT key, pending_json(data) AS call FROM entry WHERE kind = 'pending') old
WHERE e.kind = 'pending' AND e.key = old.key AND call ->> 'kind' <> ''
  AND call -> 'time' ->> 'created' ~ '^[0-9]{1,18}$'
  AND coalesce(call -> 'time' ->> 'completed', '0') ~ '^[0-9]{1,18}$';
UPDATE entry e SET
    listing = 'all',
    at = CASE WHEN session ->> 'updatedAt' ~ '^[0-9]{1,18}$'
              THEN (session ->> 'updatedAt')::bigint ELSE 0 END
FROM (SELECT key, pending_json(data) AS session FROM entry WHERE kind = 'session') old
WHERE e.kind = 'session' AND e.key = old.key AND session IS NOT NULL;

CREATE INDEX IF NOT EXISTS entry_listing ON entry (kind, listing, at, key) WHERE listing IS NOT NULL;
CREATE INDEX IF NOT EXISTS entry_listing_due
    ON entry (kind, listing, coalesce(due, 9223372036854775807), at, key)
    WHERE listing IS NOT NULL;

-- A program without listings continues to work: what it adds or moves to another state is in the
-- listing '?', which every list reads too.
ALTER TABLE entry ALTER COLUMN listing SET DEFAULT '?';
ALTER TABLE entry ALTER COLUMN at
    SET DEFAULT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

CREATE FUNCTION unlist_entry() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.listing := '?';
    RETURN NEW;
END
$$;

CREATE TRIGGER entry_moved BEFORE UPDATE ON entry
    FOR EACH ROW WHEN (OLD.listing = NEW.listing AND OLD.at = NEW.at AND OLD.state <> NEW.state)
    EXECUTE FUNCTION unlist_entry();
