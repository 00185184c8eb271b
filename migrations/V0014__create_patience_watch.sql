-- When the patience with undecided reservations stood still.
--
-- Patience runs between two sightings of health that are close enough; the rest of the time nobody
-- could have decided, or nobody looked. A sighting is proof, whoever had it, while a watcher that
-- sees nothing may be cut off itself. So one row serves any number of watchers: a dead one, or one
-- that is cut off, neither adds nor takes anything. All times are this server's own.

CREATE TABLE patience_watch (
    only_row boolean NOT NULL DEFAULT true,
    healthy_at timestamptz NOT NULL DEFAULT '-infinity',
    observed_at timestamptz NOT NULL DEFAULT '-infinity',
    healthy boolean NOT NULL DEFAULT false,
    cause text NOT NULL DEFAULT 'unobserved',
    max_gap_ms bigint NOT NULL DEFAULT 0,
    CONSTRAINT patience_watch_pkey PRIMARY KEY (only_row),
    CONSTRAINT patience_watch_only_row CHECK (only_row),
    CONSTRAINT patience_watch_max_gap_not_negative CHECK (max_gap_ms >= 0)
);

INSERT INTO patience_watch DEFAULT VALUES;

COMMENT ON TABLE patience_watch IS
'What was last seen of the broker and its consumers, by whichever process looked.';
COMMENT ON COLUMN patience_watch.healthy_at IS
'The last sighting of health; what follows it is not known yet to count.';
COMMENT ON COLUMN patience_watch.observed_at IS 'The last look, whatever it saw.';
COMMENT ON COLUMN patience_watch.healthy IS 'What the last look saw.';
COMMENT ON COLUMN patience_watch.cause IS
'What ails since healthy_at; empty when the last look saw health.';
COMMENT ON COLUMN patience_watch.max_gap_ms IS
'How far apart two sightings of health may be for the time between them to count.';

CREATE TABLE standstill (
    standstill_id bigint GENERATED ALWAYS AS IDENTITY,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    cause text NOT NULL,
    CONSTRAINT standstill_pkey PRIMARY KEY (standstill_id),
    CONSTRAINT standstill_forward CHECK (began_at < ended_at)
);

CREATE INDEX standstill_by_end ON standstill (ended_at);

COMMENT ON TABLE standstill IS
'Times that patience does not count, from one sighting of health to the next. Those that ended before any open reservation can have begun are deleted.';
COMMENT ON COLUMN standstill.began_at IS 'Before anything was ever seen: -infinity.';
COMMENT ON COLUMN standstill.cause IS 'What the watchers saw, or unobserved.';
