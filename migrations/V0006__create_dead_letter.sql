-- Messages that could not be processed, kept whole.

CREATE TABLE dead_letter (
    letter_id bigint GENERATED ALWAYS AS IDENTITY,
    topic text NOT NULL,
    consumer_group text NOT NULL,
    message_key text,
    broker_message_id text NOT NULL,
    queue_id bigint NOT NULL,
    queue_offset bigint NOT NULL,
    born_at timestamptz,
    body bytea NOT NULL,
    body_sha256 bytea NOT NULL GENERATED ALWAYS AS (sha256(body)) STORED,
    properties jsonb NOT NULL,
    reason text COLLATE "C" NOT NULL,
    error text NOT NULL,
    attempts bigint NOT NULL,
    activity_id text COLLATE "C",
    sku_id text COLLATE "C",
    version bigint,
    bucket_id bigint,
    reservation_id text COLLATE "C",
    times_parked bigint NOT NULL DEFAULT 1,
    parked_at timestamptz NOT NULL DEFAULT now(),
    last_parked_at timestamptz NOT NULL DEFAULT now(),
    replayed_at timestamptz,
    replayed_by text,
    CONSTRAINT dead_letter_pkey PRIMARY KEY (letter_id),
    CONSTRAINT dead_letter_attempts_not_negative CHECK (attempts >= 0),
    CONSTRAINT dead_letter_scope_whole CHECK (
        num_nulls(activity_id, sku_id, version, bucket_id) IN (0, 4)
    ),
    CONSTRAINT dead_letter_replay_whole CHECK ((replayed_at IS NULL) = (replayed_by IS NULL))
);

-- Parking again is a no-op. The body is part of the key, since a forged message may carry the id of
-- an honest one; of a key of any length only the head is indexed, which an index entry can hold.
CREATE UNIQUE INDEX dead_letter_once ON dead_letter (
    topic, left(coalesce(message_key, broker_message_id), 256), body_sha256
);

COMMENT ON TABLE dead_letter IS 'Messages that were acknowledged because they are kept here.';
COMMENT ON COLUMN dead_letter.message_key IS 'The message id that its sender gave, if it could be read.';
COMMENT ON COLUMN dead_letter.properties IS 'All properties; a NUL character is stored as U+2400.';
COMMENT ON COLUMN dead_letter.reason IS 'A word for the kind of failure.';
COMMENT ON COLUMN dead_letter.error IS 'What went wrong, for a person; never a user id.';
COMMENT ON COLUMN dead_letter.reservation_id IS 'The reservation inside, if it could be decoded.';
COMMENT ON COLUMN dead_letter.replayed_at IS 'When an operator sent it again.';
