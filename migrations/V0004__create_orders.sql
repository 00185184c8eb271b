-- Orders. The unique indexes are the last defence against selling twice.

CREATE TABLE orders (
    order_id uuid NOT NULL DEFAULT gen_random_uuid(),
    reservation_id text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    quantity bigint NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'ACTIVE',
    created_at timestamptz NOT NULL DEFAULT now(),
    cancelled_at timestamptz,
    cancel_reason text,
    updated_by text NOT NULL,
    CONSTRAINT orders_pkey PRIMARY KEY (order_id),
    CONSTRAINT orders_one_per_reservation UNIQUE (reservation_id),
    CONSTRAINT orders_one_per_request UNIQUE (activity_id, sku_id, version, request_id),
    CONSTRAINT orders_quantity_positive CHECK (quantity > 0),
    CONSTRAINT orders_state_word CHECK (state IN ('ACTIVE', 'CANCELLED')),
    CONSTRAINT orders_cancelled_whole CHECK (
        (state = 'CANCELLED') = (cancelled_at IS NOT NULL)
        AND (state = 'CANCELLED') = (cancel_reason IS NOT NULL)
    )
);

-- Over all versions and buckets. A cancelled order does not stand in the way of a new one.
CREATE UNIQUE INDEX orders_one_active_per_user ON orders (activity_id, sku_id, user_id)
WHERE state = 'ACTIVE';

COMMENT ON TABLE orders IS 'One row an order, made from one reservation.';
COMMENT ON COLUMN orders.order_id IS 'Made here, in the transaction that decides.';
COMMENT ON COLUMN orders.request_id IS 'The caller''s idempotency key; one order a version, cancelled ones included.';
COMMENT ON COLUMN orders.state IS 'ACTIVE counts against the stock; CANCELLED has given its units back.';
COMMENT ON COLUMN orders.updated_by IS 'Name of the transaction that wrote the row last.';
