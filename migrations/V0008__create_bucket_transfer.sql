-- Units on their way from one bucket to another.

CREATE TABLE bucket_transfer (
    transfer_id uuid NOT NULL,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    from_bucket_id bigint NOT NULL,
    to_bucket_id bigint NOT NULL,
    units bigint NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'REQUESTED',
    actor text NOT NULL,
    reason text NOT NULL,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz,
    lease_token uuid,
    attempts bigint NOT NULL DEFAULT 0,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    updated_by text NOT NULL,
    CONSTRAINT bucket_transfer_pkey PRIMARY KEY (transfer_id),
    CONSTRAINT bucket_transfer_donor_fkey
        FOREIGN KEY (activity_id, sku_id, version, from_bucket_id)
        REFERENCES activity_stock (activity_id, sku_id, version, bucket_id),
    CONSTRAINT bucket_transfer_receiver_fkey
        FOREIGN KEY (activity_id, sku_id, version, to_bucket_id)
        REFERENCES activity_stock (activity_id, sku_id, version, bucket_id),
    CONSTRAINT bucket_transfer_units_positive CHECK (units > 0),
    CONSTRAINT bucket_transfer_two_buckets CHECK (from_bucket_id <> to_bucket_id),
    CONSTRAINT bucket_transfer_state_word CHECK (
        state IN ('REQUESTED', 'DEDUCTED', 'MOVED', 'DONE', 'ABORTING', 'ABORTED')
    ),
    CONSTRAINT bucket_transfer_attempts_not_negative CHECK (attempts >= 0),
    CONSTRAINT bucket_transfer_lease_whole CHECK ((lease_until IS NULL) = (lease_token IS NULL)),
    CONSTRAINT bucket_transfer_closed_at_the_end
        CHECK ((state IN ('DONE', 'ABORTED')) = (closed_at IS NOT NULL))
);

CREATE INDEX bucket_transfer_due ON bucket_transfer (next_attempt_at)
WHERE closed_at IS NULL;

COMMENT ON TABLE bucket_transfer IS
'A saga: the donor''s script deducts, PostgreSQL moves the units or aborts, the receiver''s script adds.';
COMMENT ON COLUMN bucket_transfer.state IS
'REQUESTED, DEDUCTED (Redis donor), MOVED (both stock rows), DONE (Redis receiver); ABORTING, ABORTED.';
