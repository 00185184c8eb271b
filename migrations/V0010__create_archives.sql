-- Where the rows of an activity version go once its retention is over. The live tables' indexes then
-- hold only what can still change.

CREATE TABLE reservation_decision_archive (
    LIKE reservation_decision INCLUDING COMMENTS,
    archived_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT reservation_decision_archive_pkey PRIMARY KEY (reservation_id)
);

CREATE INDEX reservation_decision_archive_by_scope
ON reservation_decision_archive (activity_id, sku_id, version, request_id);

CREATE TABLE orders_archive (
    LIKE orders INCLUDING COMMENTS,
    archived_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT orders_archive_pkey PRIMARY KEY (order_id)
);

CREATE INDEX orders_archive_by_scope
ON orders_archive (activity_id, sku_id, version, user_id);

CREATE TABLE stock_ledger_archive (
    LIKE stock_ledger INCLUDING COMMENTS,
    archived_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT stock_ledger_archive_pkey PRIMARY KEY (entry_id)
);

CREATE INDEX stock_ledger_archive_by_scope
ON stock_ledger_archive (activity_id, sku_id, version, bucket_id);

COMMENT ON TABLE reservation_decision_archive IS 'Decisions of archived activity versions.';
COMMENT ON TABLE orders_archive IS 'Orders of archived activity versions.';
COMMENT ON TABLE stock_ledger_archive IS 'Stock journal of archived activity versions.';
