-- oldest program: 4
-- Programs find streams that are held or due in the table of leases.
DROP INDEX IF EXISTS stream_due;
DROP INDEX IF EXISTS stream_holder;
