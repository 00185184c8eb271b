-- By which name a bucket's server is known, and which ones came before it.
--
-- A run id names a process: one that is demoted and promoted again has it still, although its writes
-- of before may be lost. The replication id names a history: whoever becomes a primary begins a new
-- one. Two reconcilers may see different primaries for as long as a network is divided; the names of
-- before tell the one with the old view that its server is none that has just taken over.

ALTER TABLE recovery_window
ADD COLUMN replication_id text COLLATE "C" NOT NULL DEFAULT '',
ADD COLUMN former text [] NOT NULL DEFAULT '{}',
ADD COLUMN sighted_at timestamptz NOT NULL DEFAULT now();

COMMENT ON COLUMN recovery_window.replication_id IS
'The history that the node which served the bucket last writes; empty until it was seen.';
COMMENT ON COLUMN recovery_window.former IS 'The last replication ids before it, at most 16.';
COMMENT ON COLUMN recovery_window.sighted_at IS
'When somebody saw that history last, as far as it has been noted.';
