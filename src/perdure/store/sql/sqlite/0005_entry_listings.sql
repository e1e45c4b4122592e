-- Listings: entries of a kind in the order of an instant or of their due times, so that a page costs
-- the same however many entries there are. NULL: the entry is in none. The checksum leaves both
-- columns out: they only order what the other columns say.
ALTER TABLE entry ADD COLUMN listing TEXT;
ALTER TABLE entry ADD COLUMN at INTEGER;

-- Pending calls and sessions of earlier programs. One whose data is not JSON comes first.
UPDATE entry SET listing = '?', at = 0 WHERE kind IN ('pending', 'session');
UPDATE entry SET
    listing = CASE WHEN state = 'open'
        THEN 'open/' || json_extract(CAST(data AS TEXT), '$.kind') ELSE 'settled' END,
    at = coalesce(CASE WHEN state <> 'open'
        THEN json_extract(CAST(data AS TEXT), '$.time.completed') END,
        json_extract(CAST(data AS TEXT), '$.time.created'))
WHERE kind = 'pending' AND json_valid(CAST(data AS TEXT))
  AND json_type(CAST(data AS TEXT), '$.kind') = 'text'
  AND json_type(CAST(data AS TEXT), '$.time.created') = 'integer';
UPDATE entry SET
    listing = 'all',
    at = coalesce(json_extract(CAST(data AS TEXT), '$.updatedAt'), 0)
WHERE kind = 'session' AND json_valid(CAST(data AS TEXT));

CREATE INDEX entry_listing ON entry (kind, listing, at, key) WHERE listing IS NOT NULL;
CREATE INDEX entry_listing_due
    ON entry (kind, listing, coalesce(due, 9223372036854775807), at, key)
    WHERE listing IS NOT NULL;
