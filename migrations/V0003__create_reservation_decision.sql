-- The one decision of a reservation, and the messages that asked for one.

CREATE TABLE inbox (
    message_id text COLLATE "C" NOT NULL,
    topic text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT inbox_pkey PRIMARY KEY (message_id)
);

COMMENT ON TABLE inbox IS
'Messages whose effect is committed. Parked messages are not here, so that a replay is processed.';

CREATE TABLE reservation_decision (
    reservation_id text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    quantity bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    reason text COLLATE "C",
    reserved_at timestamptz NOT NULL,
    traceparent text COLLATE "C",
    decided_at timestamptz NOT NULL DEFAULT now(),
    updated_by text NOT NULL,
    CONSTRAINT reservation_decision_pkey PRIMARY KEY (reservation_id),
    CONSTRAINT reservation_decision_quantity_positive CHECK (quantity > 0),
    CONSTRAINT reservation_decision_kind_word
        CHECK (kind IN ('ORDERED', 'REJECTED', 'RELEASED')),
    CONSTRAINT reservation_decision_reason_given CHECK ((kind = 'ORDERED') = (reason IS NULL)),
    CONSTRAINT reservation_decision_reject_word CHECK (
        kind <> 'REJECTED'
        OR reason IN ('STOCK_EXHAUSTED', 'USER_HAS_ORDER', 'REQUEST_ID_USED')
    )
);

-- The audit and the reconciler walk a version's decisions in pages.
CREATE INDEX reservation_decision_by_scope
ON reservation_decision (activity_id, sku_id, version, reservation_id);

-- A query by request id finds an order by the order's own index; this one holds only the rest, so
-- that it costs nothing while a sale runs.
CREATE INDEX reservation_decision_refused_by_request
ON reservation_decision (activity_id, sku_id, version, request_id)
WHERE kind <> 'ORDERED';

COMMENT ON TABLE reservation_decision IS
'What was decided about a reservation, once. The release fence and the order transaction write the same key, so that the first one wins.';
COMMENT ON COLUMN reservation_decision.kind IS
'ORDERED: an order was made. REJECTED: the rules said no. RELEASED: fenced, can never become an order.';
COMMENT ON COLUMN reservation_decision.reason IS 'Why it is no order; NULL for ORDERED.';
COMMENT ON COLUMN reservation_decision.bucket_id IS 'The bucket whose unit is held.';
COMMENT ON COLUMN reservation_decision.reserved_at IS 'When Redis accepted it.';
COMMENT ON COLUMN reservation_decision.traceparent IS 'The purchase''s W3C trace context.';
COMMENT ON COLUMN reservation_decision.updated_by IS 'Name of the transaction that wrote the row last.';
