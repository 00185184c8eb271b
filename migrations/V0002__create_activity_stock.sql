-- Stock, one row a bucket, and the journal of every change to it.

-- Every order of a bucket updates this one row. Free space on the page keeps those updates
-- heap-only, so that they never touch the index.
CREATE TABLE activity_stock (
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    total bigint NOT NULL,
    available bigint NOT NULL,
    sold bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by text NOT NULL,
    CONSTRAINT activity_stock_pkey PRIMARY KEY (activity_id, sku_id, version, bucket_id),
    CONSTRAINT activity_stock_activity_fkey
        FOREIGN KEY (activity_id, sku_id, version)
        REFERENCES activity (activity_id, sku_id, version),
    CONSTRAINT activity_stock_bucket_range CHECK (bucket_id BETWEEN 0 AND 4095),
    CONSTRAINT activity_stock_available_not_negative CHECK (available >= 0),
    CONSTRAINT activity_stock_sold_not_negative CHECK (sold >= 0),
    CONSTRAINT activity_stock_conserved CHECK (total = available + sold)
) WITH (fillfactor = 50);

COMMENT ON TABLE activity_stock IS
'Units of one bucket. An order deducts from its reservation''s bucket row alone.';
COMMENT ON COLUMN activity_stock.total IS 'Units the bucket was given; only a transfer changes it.';
COMMENT ON COLUMN activity_stock.available IS 'Units without an active order.';
COMMENT ON COLUMN activity_stock.sold IS 'Units in active orders.';
COMMENT ON COLUMN activity_stock.updated_by IS 'Name of the transaction that wrote the row last.';

CREATE TABLE stock_ledger (
    entry_id bigint GENERATED ALWAYS AS IDENTITY,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    delta bigint NOT NULL,
    reservation_id text COLLATE "C",
    transfer_id uuid,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT stock_ledger_pkey PRIMARY KEY (entry_id),
    CONSTRAINT stock_ledger_kind_word
        CHECK (kind IN ('INITIAL', 'ORDERED', 'CANCELLED', 'TRANSFER_OUT', 'TRANSFER_IN')),
    CONSTRAINT stock_ledger_sign CHECK (
        CASE
            WHEN kind IN ('ORDERED', 'TRANSFER_OUT') THEN delta < 0
            WHEN kind IN ('CANCELLED', 'TRANSFER_IN') THEN delta > 0
            ELSE delta >= 0
        END
    ),
    CONSTRAINT stock_ledger_cause CHECK (
        (kind IN ('ORDERED', 'CANCELLED')) = (reservation_id IS NOT NULL)
        AND (kind IN ('TRANSFER_OUT', 'TRANSFER_IN')) = (transfer_id IS NOT NULL)
    )
);

-- A reservation's units leave once and come back once, whatever is repeated.
CREATE UNIQUE INDEX stock_ledger_once_per_reservation ON stock_ledger (reservation_id, kind)
WHERE reservation_id IS NOT NULL;

CREATE UNIQUE INDEX stock_ledger_once_per_transfer ON stock_ledger (transfer_id, kind)
WHERE transfer_id IS NOT NULL;

CREATE UNIQUE INDEX stock_ledger_one_initial
ON stock_ledger (activity_id, sku_id, version, bucket_id)
WHERE kind = 'INITIAL';

COMMENT ON TABLE stock_ledger IS
'Every change of a bucket''s available units; per bucket the deltas add up to available.';
COMMENT ON COLUMN stock_ledger.kind IS 'INITIAL, ORDERED, CANCELLED, TRANSFER_OUT or TRANSFER_IN.';
COMMENT ON COLUMN stock_ledger.delta IS 'Change of available: negative when units are sold.';
