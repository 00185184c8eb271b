-- The end of a version: its stock can neither be sold nor given back any more, so that a message
-- that comes years late finds nothing to take from.

ALTER TABLE activity_stock ADD COLUMN sealed_at timestamptz;

COMMENT ON COLUMN activity_stock.sealed_at IS
'When the version was archived. Orders and cancellations treat a sealed row as missing.';
