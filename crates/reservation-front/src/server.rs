//! The gRPC listener: its limits, and its end.

use std::sync::Arc;
use std::time::Duration;

use seckill_proto::v1::reservation_service_server::ReservationServiceServer;
use seckill_proto::{ACTIVITY_TOKEN_BYTES_MAX, FILE_DESCRIPTOR_SET};
use seckill_service_kit::Context;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::first_send::Senders;
use crate::incoming::incoming;
use crate::layer::CallLimits;
use crate::reserve::Reserving;
use crate::service::Front;

/// The largest message taken. The largest valid one has four ids of 128 bytes, the activity token of
/// 4,096 and numbers: below 4,700 bytes. Twice that leaves room for fields of newer callers.
const MESSAGE_BYTES_MAX: usize = 2 * (ACTIVITY_TOKEN_BYTES_MAX + 600);

/// Calls of one connection at once: a caller with 512 in flight over one connection, doubled.
const STREAMS_MAX: u32 = 1_024;

/// What HTTP/2 itself lets through of a call's metadata. It answers beyond that with a bare HTTP
/// status, so the limit with a proper answer (`METADATA_BYTES_MAX`) lies below it.
const HEADER_LIST_BYTES_MAX: u32 = 256 * 1024;

/// Bytes in flight of one stream: far more than one message.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Bytes in flight of one connection: 1,024 streams of one usual call, some 300 bytes, and room.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// When a silent connection is probed, and how long its answer may take: dead peers are gone within
/// 40 s, and load balancers that drop idle connections keep these.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// How long connections may stay open after the last call could still be answered, which is within
/// 2 s: what is still open then is idle or stuck.
const CONNECTIONS_CLOSE_MAX: Duration = Duration::from_secs(3);

/// The listener's limits that are settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The longest time for one call.
    pub(crate) own_budget: Duration,
    /// Connections at once.
    pub(crate) connections_max: usize,
}

/// Serves until the process takes no more work, then lets the calls in hand finish, and at last says
/// that nothing more will be queued for sending.
pub(crate) async fn serve(
    ctx: Context,
    listener: TcpListener,
    front: Front,
    health: HealthReporter,
    reserving: Arc<Reserving>,
    senders: Arc<Senders>,
    limits: Limits,
) -> anyhow::Result<()> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let health = HealthServer::new(HealthService::from_health_reporter(health))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let front = ReservationServiceServer::new(front).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let Limits {
        own_budget,
        connections_max,
    } = limits;
    let incoming = incoming(listener, KEEPALIVE, connections_max);
    let shutdown = ctx.shutdown();
    let serving = Server::builder()
        .layer(CallLimits { own_budget })
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(reflection)
        .add_service(health)
        .add_service(front)
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    let connections_closed = async {
        shutdown.cancelled().await;
        tokio::time::sleep(CONNECTIONS_CLOSE_MAX).await;
    };
    tokio::select! {
        served = serving => served?,
        () = connections_closed => tracing::info!("connections still open end with the process"),
    }
    reserving.drained().await;
    senders.close();
    Ok(())
}
