-- Order events that are committed with their cause and published afterwards.

CREATE TABLE outbox (
    outbox_id bigint GENERATED ALWAYS AS IDENTITY,
    event_id text COLLATE "C" NOT NULL,
    topic text NOT NULL,
    kind text COLLATE "C" NOT NULL,
    reservation_id text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    quantity bigint NOT NULL,
    order_id uuid,
    reason text COLLATE "C",
    traceparent text COLLATE "C",
    occurred_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    lease_until timestamptz,
    lease_token uuid,
    attempts bigint NOT NULL DEFAULT 0,
    CONSTRAINT outbox_pkey PRIMARY KEY (outbox_id),
    CONSTRAINT outbox_kind_word CHECK (kind IN ('ORDER_CREATED', 'REJECTED')),
    CONSTRAINT outbox_created_has_order CHECK ((kind = 'ORDER_CREATED') = (order_id IS NOT NULL)),
    CONSTRAINT outbox_rejected_has_reason CHECK ((kind = 'REJECTED') = (reason IS NOT NULL)),
    CONSTRAINT outbox_attempts_not_negative CHECK (attempts >= 0)
);

-- The relay reads by state, never by a high-water mark: a row that commits late keeps its place.
CREATE INDEX outbox_unpublished ON outbox (outbox_id)
WHERE published_at IS NULL;

COMMENT ON TABLE outbox IS 'Order events, written in the transaction that made them true.';
COMMENT ON COLUMN outbox.event_id IS 'The message id, the same for every attempt.';
COMMENT ON COLUMN outbox.topic IS 'The topic without a namespace prefix.';
COMMENT ON COLUMN outbox.published_at IS 'When the broker confirmed it; NULL is to be published.';
COMMENT ON COLUMN outbox.lease_until IS 'Left alone until then: claimed by a relay, or postponed.';
COMMENT ON COLUMN outbox.lease_token IS 'Proves the claim; NULL while postponed.';
