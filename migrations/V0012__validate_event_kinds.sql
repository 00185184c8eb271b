-- Checks the rows that were there before the kinds of events grew. Nobody waits for it.

ALTER TABLE outbox VALIDATE CONSTRAINT outbox_kind_word;
ALTER TABLE outbox VALIDATE CONSTRAINT outbox_created_has_order;
