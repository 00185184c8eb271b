-- One row per version of an activity's sale of one SKU, and the record of who moved its state.

CREATE TABLE activity (
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'PREPARED',
    starts_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL,
    retention_until timestamptz NOT NULL,
    total_stock bigint NOT NULL,
    bucket_count bigint NOT NULL,
    limit_per_user bigint NOT NULL DEFAULT 1,
    max_quantity bigint NOT NULL DEFAULT 1,
    reservation_ttl_ms bigint NOT NULL,
    patience_ms bigint NOT NULL,
    secret_version bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by text NOT NULL,
    archived_at timestamptz,
    CONSTRAINT activity_pkey PRIMARY KEY (activity_id, sku_id, version),
    CONSTRAINT activity_activity_id_form CHECK (activity_id ~ '^[A-Za-z0-9_-]{1,128}$'),
    CONSTRAINT activity_sku_id_form CHECK (sku_id ~ '^[A-Za-z0-9_-]{1,128}$'),
    CONSTRAINT activity_version_range CHECK (version BETWEEN 1 AND 9007199254740991),
    CONSTRAINT activity_state_word CHECK (state IN ('PREPARED', 'ACTIVE', 'PAUSED', 'CLOSED')),
    CONSTRAINT activity_times_ordered CHECK (starts_at <= ends_at AND ends_at < retention_until),
    CONSTRAINT activity_total_stock_range CHECK (total_stock BETWEEN 0 AND 9007199254740991),
    CONSTRAINT activity_bucket_count_range CHECK (bucket_count BETWEEN 1 AND 4096),
    CONSTRAINT activity_limit_per_user_supported CHECK (limit_per_user = 1),
    CONSTRAINT activity_max_quantity_range CHECK (max_quantity BETWEEN 1 AND 1000000),
    CONSTRAINT activity_reservation_ttl_positive CHECK (reservation_ttl_ms > 0),
    CONSTRAINT activity_patience_positive CHECK (patience_ms > 0),
    CONSTRAINT activity_secret_version_range CHECK (secret_version BETWEEN 0 AND 4294967295)
);

-- Versions are opened one at a time.
CREATE UNIQUE INDEX activity_one_active_per_sku ON activity (activity_id, sku_id)
WHERE state = 'ACTIVE';

-- Open scopes are read every two seconds by every worker.
CREATE INDEX activity_open ON activity (retention_until)
WHERE archived_at IS NULL;

COMMENT ON TABLE activity IS 'Settings and state of one version of an activity''s sale of one SKU.';
COMMENT ON COLUMN activity.version IS 'The edition: a new namespace of Redis keys and stock rows.';
COMMENT ON COLUMN activity.state IS 'PREPARED, ACTIVE, PAUSED or CLOSED; moved by operators alone.';
COMMENT ON COLUMN activity.starts_at IS 'First instant of the sale, inclusive.';
COMMENT ON COLUMN activity.ends_at IS 'Last instant of the sale, inclusive.';
COMMENT ON COLUMN activity.retention_until IS 'When every Redis key of the version expires.';
COMMENT ON COLUMN activity.total_stock IS 'Units on sale, over all buckets.';
COMMENT ON COLUMN activity.bucket_count IS 'Buckets that the stock is split into; fixed for the version.';
COMMENT ON COLUMN activity.limit_per_user IS 'Units a user may hold; only 1 until cumulative limits exist.';
COMMENT ON COLUMN activity.max_quantity IS 'Most units that one call may ask for.';
COMMENT ON COLUMN activity.reservation_ttl_ms IS 'From acceptance to the check of a reservation that is still open.';
COMMENT ON COLUMN activity.patience_ms IS 'How long an undecided reservation is left alone.';
COMMENT ON COLUMN activity.secret_version IS 'The HMAC secret that derives this version''s reservation ids.';
COMMENT ON COLUMN activity.updated_by IS 'Name of the transaction that wrote the row last.';
COMMENT ON COLUMN activity.archived_at IS 'When its rows moved to the archive tables; no worker visits it since.';

CREATE TABLE activity_event (
    event_id bigint GENERATED ALWAYS AS IDENTITY,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    from_state text COLLATE "C",
    to_state text COLLATE "C" NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    happened_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT activity_event_pkey PRIMARY KEY (event_id),
    CONSTRAINT activity_event_activity_fkey
        FOREIGN KEY (activity_id, sku_id, version)
        REFERENCES activity (activity_id, sku_id, version),
    CONSTRAINT activity_event_from_word
        CHECK (from_state IN ('PREPARED', 'ACTIVE', 'PAUSED', 'CLOSED')),
    CONSTRAINT activity_event_to_word
        CHECK (to_state IN ('PREPARED', 'ACTIVE', 'PAUSED', 'CLOSED')),
    CONSTRAINT activity_event_actor_named CHECK (actor <> '')
);

CREATE INDEX activity_event_by_activity
ON activity_event (activity_id, sku_id, version, event_id);

COMMENT ON TABLE activity_event IS 'Who moved an activity''s state, when and why.';
COMMENT ON COLUMN activity_event.from_state IS 'NULL for the creation.';
COMMENT ON COLUMN activity_event.actor IS 'The operator or the controller, as it names itself.';
