//! One purchase from the call to the order, and its trace on every hop.

use seckill_integration_tests::{AnswerBook, Plan, Sandbox};
use seckill_proto::v1::{AnswerSource, ReservationStatus};
use seckill_test_support::{OrFail, eventually};
use tonic::Request;

use crate::harness::{SETTLES, SOON, SendLog, bucket, is_accepted, message_id, orders};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test(flavor = "multi_thread")]
async fn one_purchase_becomes_one_order_and_stays_one_trace() {
    let sandbox = Sandbox::builder().broker_proxy().start().await;
    let sends = SendLog::record(sandbox.broker_proxy());
    let sale = sandbox.open(&Plan::new(3)).await;
    let services = sandbox.run_all().await;
    let client = sandbox.client(&services.front);
    let book = AnswerBook::new();

    let mut request = Request::new(sale.reserve("u1", "q1"));
    let traceparent = format!("00-{TRACE_ID}-b7ad6b7169203331-01");
    request
        .metadata_mut()
        .insert("traceparent", traceparent.parse().unwrap());
    let answer = client.raw().reserve(request).await.unwrap().into_inner();
    assert!(is_accepted(answer.code), "{answer:?}");
    assert_eq!(answer.status(), ReservationStatus::Queued);
    assert_eq!((answer.remaining, answer.replay), (2, false));
    book.note("u1", "q1", &answer);
    let id = answer.reservation_id;

    let found = eventually(SOON, "the order", async || {
        let found = client.by_reservation(&sale, "u1", &id).await;
        let found = found.map_err(|status| status.to_string())?;
        match found.status() {
            ReservationStatus::OrderCreated => Ok(found),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(found.source(), AnswerSource::Redis);
    assert_eq!(
        (found.reservation_id.as_str(), found.quantity),
        (id.as_str(), 1)
    );
    let by_request = client.by_request(&sale, "u1", "q1").await.unwrap();
    assert_eq!(by_request, found);

    let rows = "SELECT order_id::text, reservation_id, request_id, user_id, quantity::text, state FROM orders";
    let expected = [&found.order_id, id.as_str(), "q1", "u1", "1", "ACTIVE"];
    assert_eq!(sandbox.database().texts(rows).await, [expected]);

    // A repeat is told the first reservation and where it stands now, and takes nothing.
    let again = client.repeat(&sale, "u1", "q1").await.unwrap();
    book.note("u1", "q1", &again);
    assert!(again.replay);
    assert_eq!(again.status(), ReservationStatus::OrderCreated);

    sandbox.assert_settles_consistent(SETTLES).await;
    assert_eq!(orders(&sandbox, &sale).await, 1);
    let held = bucket(&sandbox, &sale, 0).await;
    assert_eq!(
        (&*held.stock["available"], &*held.stock["reserved"]),
        ("2", "1")
    );
    let audit = sandbox.audit(&sale, &["--require-settled"]).await;
    assert_eq!(audit.code, Some(0), "{audit:?}");

    assert_traced(&sandbox, &sends, &held.reservations[&id], &id).await;
    for service in services.all() {
        service.stop(SOON).await;
    }
}

/// I11: the buyer's trace id is in the reservation, the order request, the decision, the outbox row
/// and the order event.
async fn assert_traced(
    sandbox: &Sandbox,
    sends: &SendLog,
    reservation: &seckill_integration_tests::checks::Fields,
    id: &str,
) {
    let traced = |text: &str| text.contains(TRACE_ID);
    assert!(traced(&reservation["traceparent"]), "{reservation:?}");
    assert!(
        sends.has_both(&message_id(id), TRACE_ID),
        "the order request"
    );
    for table in ["reservation_decision", "outbox"] {
        let query = format!("SELECT traceparent FROM {table} WHERE reservation_id = '{id}'");
        let rows = sandbox.database().texts(&query).await;
        assert!(
            !rows.is_empty() && rows.iter().all(|row| traced(&row[0])),
            "{table}: {rows:?}"
        );
    }
    let query = format!("SELECT event_id FROM outbox WHERE reservation_id = '{id}'");
    let events = sandbox.database().texts(&query).await;
    let event = events
        .first()
        .ok_or_else(|| anyhow::anyhow!("no event of {id}"))
        .or_fail("the order event");
    assert!(sends.has_both(&event[0], TRACE_ID), "the order event");
}
