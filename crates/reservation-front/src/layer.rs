//! What every call passes before its service: the limit of its metadata, and its deadline.
//!
//! Left alone, tonic answers a call that is late with `CANCELLED`, and hyper resets the connection's
//! stream when metadata is too large; neither tells a caller what to do.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout_at;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tower::{Layer, Service};

use crate::deadline::{CallDeadline, GRPC_TIMEOUT};
use crate::faults::{Fault, metadata_too_large};

/// The most metadata of a call, in bytes as HTTP/2 counts them. Trace context and baggage may take
/// 27 KiB by their specifications; nothing else of size belongs there.
pub(crate) const METADATA_BYTES_MAX: usize = 48 * 1024;

/// What HTTP/2 adds to each header's name and value (RFC 9113, 6.5.2).
const HEADER_OVERHEAD: usize = 32;

/// How long after the deadline a call that has not even arrived whole is given up. A service answers
/// at its deadline by itself, and its answer is the better one.
const OVERTIME: Duration = Duration::from_millis(5);

/// Adds the checks to a service.
#[derive(Debug, Clone)]
pub(crate) struct CallLimits {
    pub(crate) own_budget: Duration,
}

impl<S> Layer<S> for CallLimits {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            inner,
            own_budget: self.own_budget,
        }
    }
}

/// A service with the checks in front.
#[derive(Debug, Clone)]
pub(crate) struct Limited<S> {
    inner: S,
    own_budget: Duration,
}

fn metadata_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD)
        .sum()
}

type Answer<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

impl<S, A, B> Service<Request<A>> for Limited<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Default + Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Answer<B, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        if metadata_bytes(request.headers()) > METADATA_BYTES_MAX {
            let refusal = metadata_too_large(METADATA_BYTES_MAX).into_http();
            return Box::pin(async move { Ok(refusal) });
        }
        let header = request.headers().get(GRPC_TIMEOUT);
        let limit = header.and_then(|value| value.to_str().ok());
        let deadline = CallDeadline::of(limit, self.own_budget);
        request.extensions_mut().insert(deadline);
        let answer = self.inner.call(request);
        Box::pin(async move {
            match timeout_at(deadline.instant() + OVERTIME, answer).await {
                Ok(answer) => answer,
                // The service was never reached, since it would have answered.
                Err(_) => Ok(Fault::DeadlineExceeded.status(None).into_http()),
            }
        })
    }
}
