-- Reservations that have to be released, or settled in another way, by the compensation worker.

CREATE TABLE compensation_task (
    reservation_id text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    activity_id text COLLATE "C" NOT NULL,
    sku_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    bucket_id bigint NOT NULL,
    quantity bigint NOT NULL,
    reserved_at timestamptz NOT NULL,
    traceparent text COLLATE "C",
    origin text COLLATE "C" NOT NULL,
    generation bigint NOT NULL DEFAULT 1,
    next_attempt_at timestamptz NOT NULL,
    lease_until timestamptz,
    lease_token uuid,
    attempts bigint NOT NULL DEFAULT 0,
    last_error text,
    opened_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    result text,
    updated_by text NOT NULL,
    CONSTRAINT compensation_task_pkey PRIMARY KEY (reservation_id),
    CONSTRAINT compensation_task_quantity_positive CHECK (quantity > 0),
    CONSTRAINT compensation_task_origin_word
        CHECK (origin IN ('REJECTED', 'PARKED', 'OVERDUE', 'HELD_AGAIN', 'CANCELLED')),
    CONSTRAINT compensation_task_generation_positive CHECK (generation >= 1),
    CONSTRAINT compensation_task_attempts_not_negative CHECK (attempts >= 0),
    CONSTRAINT compensation_task_lease_whole
        CHECK ((lease_until IS NULL) = (lease_token IS NULL)),
    CONSTRAINT compensation_task_closed_with_result
        CHECK ((closed_at IS NULL) = (result IS NULL))
);

CREATE INDEX compensation_task_due ON compensation_task (next_attempt_at, reservation_id)
WHERE closed_at IS NULL;

COMMENT ON TABLE compensation_task IS
'One row a reservation. Closed only relative to the Redis state that was seen; handing over reopens it.';
COMMENT ON COLUMN compensation_task.origin IS 'Why it was last opened.';
COMMENT ON COLUMN compensation_task.generation IS
'Adds one with every reopening; a worker closes only the generation it worked on.';
COMMENT ON COLUMN compensation_task.next_attempt_at IS 'Not worked on before.';
COMMENT ON COLUMN compensation_task.lease_token IS 'Proves the claim.';
COMMENT ON COLUMN compensation_task.attempts IS 'Claims of this generation.';
COMMENT ON COLUMN compensation_task.result IS 'How it was closed.';
COMMENT ON COLUMN compensation_task.updated_by IS 'Name of the transaction that wrote the row last.';
