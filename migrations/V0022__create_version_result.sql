-- What an archived version came to, and how far the move of its rows is.

CREATE TABLE version_result (
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    total_stock bigint NOT NULL,
    redis_left bigint,
    orders bigint NOT NULL,
    order_units bigint NOT NULL,
    cancelled bigint NOT NULL,
    released bigint NOT NULL,
    rejected bigint NOT NULL,
    difference bigint NOT NULL,
    archived_by text NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now(),
    moved_at timestamptz,
    CONSTRAINT version_result_pkey PRIMARY KEY (activity_id, sku_id, version),
    CONSTRAINT version_result_activity_fkey
        FOREIGN KEY (activity_id, sku_id, version)
        REFERENCES activity (activity_id, sku_id, version),
    CONSTRAINT version_result_counts_not_negative CHECK (
        least(total_stock, redis_left, orders, order_units, cancelled, released, rejected) >= 0
    ),
    CONSTRAINT version_result_actor_named CHECK (archived_by <> '')
);

CREATE INDEX version_result_moving ON version_result (archived_at)
WHERE moved_at IS NULL;

COMMENT ON TABLE version_result IS 'The figures of a version at its end, one row each.';
COMMENT ON COLUMN version_result.redis_left IS
'Units that Redis had left over all buckets; NULL when it could not tell any more.';
COMMENT ON COLUMN version_result.orders IS 'Active orders.';
COMMENT ON COLUMN version_result.order_units IS 'Units in active orders.';
COMMENT ON COLUMN version_result.cancelled IS 'Cancelled orders.';
COMMENT ON COLUMN version_result.difference IS
'Units by which the two sides disagreed at the end; 0 when all is well.';
COMMENT ON COLUMN version_result.moved_at IS
'When the last of its rows was in the archive tables; NULL while the move is under way.';
