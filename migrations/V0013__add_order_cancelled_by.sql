-- Who cancelled an order.

ALTER TABLE orders ADD COLUMN cancelled_by text;
ALTER TABLE orders_archive ADD COLUMN cancelled_by text;

COMMENT ON COLUMN orders.cancelled_by IS
'The operator or the service, as it names itself; NULL also where an earlier program cancelled.';
COMMENT ON COLUMN orders_archive.cancelled_by IS
'The operator or the service, as it names itself; NULL also where an earlier program cancelled.';
