-- Rounds of checks, and the differences that they found.

CREATE TABLE reconciliation_run (
    run_id uuid NOT NULL DEFAULT gen_random_uuid(),
    kind text COLLATE "C" NOT NULL,
    instance text NOT NULL,
    activity_id text COLLATE "C",
    sku_id text COLLATE "C",
    version bigint,
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    checked bigint NOT NULL DEFAULT 0,
    settled bigint NOT NULL DEFAULT 0,
    discrepancies bigint NOT NULL DEFAULT 0,
    error text,
    CONSTRAINT reconciliation_run_pkey PRIMARY KEY (run_id),
    CONSTRAINT reconciliation_run_scope_whole
        CHECK (num_nulls(activity_id, sku_id, version) IN (0, 3)),
    CONSTRAINT reconciliation_run_counts_not_negative
        CHECK (checked >= 0 AND settled >= 0 AND discrepancies >= 0)
);

CREATE INDEX reconciliation_run_by_start ON reconciliation_run (started_at);

COMMENT ON TABLE reconciliation_run IS 'One round of checks by one process.';
COMMENT ON COLUMN reconciliation_run.kind IS 'What was checked.';
COMMENT ON COLUMN reconciliation_run.activity_id IS 'NULL, with sku_id and version, when all versions were checked.';
COMMENT ON COLUMN reconciliation_run.settled IS 'Steps taken towards agreement.';
COMMENT ON COLUMN reconciliation_run.error IS 'Why the round did not finish.';

CREATE TABLE discrepancy (
    discrepancy_id bigint GENERATED ALWAYS AS IDENTITY,
    run_kind text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    reservation_id text COLLATE "C",
    detail text NOT NULL,
    first_run_id uuid NOT NULL,
    last_run_id uuid NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    times_seen bigint NOT NULL DEFAULT 1,
    resolved_at timestamptz,
    CONSTRAINT discrepancy_pkey PRIMARY KEY (discrepancy_id),
    CONSTRAINT discrepancy_first_run_fkey
        FOREIGN KEY (first_run_id) REFERENCES reconciliation_run (run_id),
    CONSTRAINT discrepancy_last_run_fkey
        FOREIGN KEY (last_run_id) REFERENCES reconciliation_run (run_id)
);

-- The same difference, seen in every round, is one row that counts.
CREATE UNIQUE INDEX discrepancy_open ON discrepancy (
    activity_id, sku_id, version, bucket_id, run_kind, kind, reservation_id
) NULLS NOT DISTINCT
WHERE resolved_at IS NULL;

COMMENT ON TABLE discrepancy IS 'A difference between the stores that no rule settles by itself.';
COMMENT ON COLUMN discrepancy.run_kind IS 'The kind of round that found it, and that can see it gone.';
COMMENT ON COLUMN discrepancy.reservation_id IS 'NULL when the bucket as a whole differs.';
COMMENT ON COLUMN discrepancy.detail IS 'Both sides'' values; never a user id.';
COMMENT ON COLUMN discrepancy.resolved_at IS 'When a later round of its kind no longer saw it.';
