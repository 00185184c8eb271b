-- What a bucket's Redis was when it was last seen, and the window after a failover in which a
-- repeated request must not be refused afresh.

CREATE TABLE recovery_window (
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    opened_at timestamptz,
    reason text NOT NULL DEFAULT '',
    end_queues text [],
    end_offsets bigint [],
    seen_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    CONSTRAINT recovery_window_pkey PRIMARY KEY (activity_id, sku_id, version, bucket_id),
    CONSTRAINT recovery_window_activity_fkey
        FOREIGN KEY (activity_id, sku_id, version)
        REFERENCES activity (activity_id, sku_id, version),
    CONSTRAINT recovery_window_ends_paired CHECK (
        (end_queues IS NULL) = (end_offsets IS NULL)
        AND coalesce(cardinality(end_queues), 0) = coalesce(cardinality(end_offsets), 0)
    ),
    CONSTRAINT recovery_window_ends_while_open CHECK (
        opened_at IS NOT NULL OR end_queues IS NULL
    )
);

COMMENT ON TABLE recovery_window IS
'One row a bucket. A run id that differs from the last one means another Redis server, or the same one started again.';
COMMENT ON COLUMN recovery_window.run_id IS 'Of the Redis node that served the bucket last.';
COMMENT ON COLUMN recovery_window.opened_at IS 'To the millisecond; NULL while no window is open.';
COMMENT ON COLUMN recovery_window.end_queues IS
'The queues whose backlog has to be consumed; NULL until they were read.';
COMMENT ON COLUMN recovery_window.end_offsets IS 'Where each of end_queues ended, in the same order.';
COMMENT ON COLUMN recovery_window.seen_at IS 'When run_id was seen first.';
COMMENT ON COLUMN recovery_window.closed_at IS 'When the last window ended.';
