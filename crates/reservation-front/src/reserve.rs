//! `Reserve`, from the checked call to its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use seckill_key_layout::{BucketKeys, HmacSecrets, bucket_of_user};
use seckill_lua_scripts::{Error as RedisError, ErrorKind, Meta, Redis, Reserve, ReserveReply};
use seckill_proto::{ReserveCall, v1};
use seckill_state_machine::{RequestId, ReservationId, ReserveCode, Scope, Traceparent, UserId};
use seckill_telemetry::user_id_hash;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tracing::{debug, error, info, warn};

use crate::activities::Activities;
use crate::answer::{Answer, answer, from_cache, wants_first_send};
use crate::breaker::{Breaker, Pass};
use crate::deadline::CallDeadline;
use crate::faults::Fault;
use crate::first_send::{FirstSend, FirstSends};
use crate::log_limit::LogLimit;
use crate::settings::FrontSettings;

/// How long a call whose first attempt has an unknown outcome waits for the connection to come back
/// for its second. A lost connection is usually back within two pauses; in an outage only the calls
/// that were in flight when it began wait at all.
const RECONNECT_WAIT_MAX: Duration = Duration::from_millis(250);

/// Between two looks at the connection.
const RECONNECT_PAUSE: Duration = Duration::from_millis(25);

/// Decides nothing itself: asks the script, and takes care of what it accepted.
pub(crate) struct Reserving {
    redis: Redis,
    activities: Arc<Activities>,
    secrets: Arc<HmacSecrets>,
    first_sends: FirstSends,
    /// Script calls and what follows them; the drain waits for these.
    calls: TaskTracker,
    in_flight: Arc<Semaphore>,
    first_send_grace_ms: i64,
    negative_cache_max: u32,
    assume_window: Duration,
    started: Instant,
    breaker: Arc<Breaker>,
    redis_trouble: LogLimit,
    damage: LogLimit,
    shed: LogLimit,
}

/// One call that goes to the script.
struct Attempt {
    call: ReserveCall,
    keys: BucketKeys,
    meta: Arc<Meta>,
    reservation_id: ReservationId,
    traceparent: Option<Traceparent>,
    deadline: CallDeadline,
    pass: Pass,
    _room: OwnedSemaphorePermit,
}

/// What is known before Redis decides.
enum Plan {
    /// The front can answer by itself.
    Answer(v1::ReserveResponse),
    /// The script must be asked.
    Ask(BucketKeys, Arc<Meta>, ReservationId),
}

/// The script's last reply, and how it came about.
struct Reply {
    reply: Result<ReserveReply, RedisError>,
    after_unknown: bool,
}

impl Reserving {
    pub(crate) fn new(
        redis: Redis,
        activities: Arc<Activities>,
        first_sends: FirstSends,
        settings: &FrontSettings,
    ) -> Self {
        Self {
            redis,
            activities,
            secrets: Arc::clone(&settings.secrets.hmac_secrets),
            first_sends,
            calls: TaskTracker::new(),
            in_flight: Arc::new(Semaphore::new(settings.in_flight_max)),
            first_send_grace_ms: settings.first_send_grace(),
            negative_cache_max: settings.negative_cache(),
            assume_window: settings.assume_window_ms,
            started: Instant::now(),
            breaker: Breaker::new(settings.damage_pause_ms),
            redis_trouble: LogLimit::new(),
            damage: LogLimit::new(),
            shed: LogLimit::new(),
        }
    }

    /// Waits for every script call in hand.
    pub(crate) async fn drained(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    /// Answers one call. Dropping the future, because the caller left, stops nothing that has begun.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        call: ReserveCall,
        traceparent: Option<Traceparent>,
        deadline: CallDeadline,
    ) -> Result<v1::ReserveResponse, Status> {
        let request_id = call.request_id.clone();
        let repeat = call.repeat;
        let fail = |fault: Fault| fault.for_call(repeat).status(Some(&request_id));
        let Ok(room) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            if let Some(left_out) = self.shed.allow() {
                warn!(left_out, "too many calls in hand, some are turned away");
            }
            return Err(fail(Fault::SystemBusy));
        };
        let Some(pass) = self.breaker.admit(&call.scope) else {
            return Err(fail(Fault::SystemBusy));
        };
        let planned = timeout_at(deadline.instant(), self.plan(&call)).await;
        let (keys, meta, reservation_id) = match planned {
            Ok(Ok(Plan::Ask(keys, meta, reservation_id))) => (keys, meta, reservation_id),
            Ok(Ok(Plan::Answer(response))) => return Ok(response),
            Ok(Err(fault)) => return Err(fail(fault)),
            Err(_) => return Err(fail(Fault::DeadlineExceeded)),
        };
        if deadline.has_passed() {
            return Err(fail(Fault::DeadlineExceeded));
        }
        let attempt = Attempt {
            call,
            keys,
            meta,
            reservation_id,
            traceparent,
            deadline,
            pass,
            _room: room,
        };
        let this = Arc::clone(self);
        let asked = self.calls.spawn(async move { this.ask(attempt).await });
        match timeout_at(deadline.instant(), asked).await {
            Ok(Ok(Answer::Outcome(response))) => Ok(response),
            Ok(Ok(Answer::Fault(fault))) => Err(fail(fault)),
            // A panic, already logged: the script may have run.
            Ok(Err(_)) | Err(_) => Err(fail(Fault::OutcomeUnknown)),
        }
    }

    async fn plan(&self, call: &ReserveCall) -> Result<Plan, Fault> {
        let ours = |code| Ok(Plan::Answer(from_cache(code, &call.request_id)));
        if !call.repeat {
            // A repeat goes to its own version's keys, where its first answer is.
            let current = self
                .activities
                .current_version(&call.scope.activity_id)
                .await;
            let current = current.map_err(|error| self.lookup_failed(&call.scope, &error))?;
            match current {
                Some(version) if version == call.scope.version => {}
                Some(_) => return ours(ReserveCode::VersionMismatch),
                // Not open yet, or the pointer was lost: it may come back, so that this is not final.
                None => return ours(ReserveCode::ConfigMissing),
            }
        }
        let meta = self.activities.meta(&call.scope).await;
        let Some(meta) = meta.map_err(|error| self.lookup_failed(&call.scope, &error))? else {
            return ours(ReserveCode::ConfigMissing);
        };
        if meta.bucket.scope != call.scope {
            self.breaker
                .damaged(&call.scope, "its meta describes another activity");
            return ours(ReserveCode::InvariantViolation);
        }
        let bucket_id = bucket_of_user(&call.scope, &call.user_id, meta.bucket_count);
        let keys = BucketKeys::new(&call.scope.bucket(bucket_id));
        let derived = self.secrets.reservation_id(
            meta.secret_version,
            &call.scope,
            &call.user_id,
            &call.request_id,
            call.quantity,
        );
        match derived {
            Ok(reservation_id) => Ok(Plan::Ask(keys, meta, reservation_id)),
            Err(reason) => {
                self.report_damage(&call.scope, &format!("SECKILL_HMAC_SECRETS: {reason}"));
                Err(Fault::SystemBusy)
            }
        }
    }

    /// Asks the script, takes care of an acceptance, and words the answer.
    async fn ask(&self, attempt: Attempt) -> Answer {
        let began = Instant::now();
        let Reply {
            reply,
            after_unknown,
        } = self.ask_script(&attempt).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                return Answer::Fault(self.script_failed(&attempt, &error, after_unknown));
            }
        };
        if wants_first_send(&reply, after_unknown) {
            self.first_sends.offer(FirstSend::new(
                attempt.keys.clone(),
                attempt.reservation_id.clone(),
            ));
        }
        self.judge(&attempt, &reply);
        self.log_reply(&attempt, &reply, after_unknown, began);
        match answer(&reply, &attempt.call.request_id, after_unknown) {
            Answer::Outcome(body) if reply.code == ReserveCode::UserAlreadyReserved => {
                Answer::Outcome(self.with_status(&attempt, &reply, body).await)
            }
            told => told,
        }
    }

    /// One attempt, and one more under the same ids when the first one's outcome is unknown.
    async fn ask_script(&self, attempt: &Attempt) -> Reply {
        let first = self.run_script(attempt, attempt.call.repeat).await;
        let unknown = matches!(&first, Err(error) if error.kind() == ErrorKind::OutcomeUnknown);
        if !unknown || attempt.deadline.has_passed() {
            return Reply {
                reply: first,
                after_unknown: unknown,
            };
        }
        Reply {
            reply: self.repeat_script(attempt).await,
            after_unknown: true,
        }
    }

    /// The second attempt. One that surely did not run, for want of a connection, does not count.
    async fn repeat_script(&self, attempt: &Attempt) -> Result<ReserveReply, RedisError> {
        let until = Instant::now() + RECONNECT_WAIT_MAX;
        loop {
            let reply = self.run_script(attempt, true).await;
            let absent = matches!(&reply, Err(error) if error.kind() == ErrorKind::Unavailable);
            if !absent || Instant::now() >= until || attempt.deadline.has_passed() {
                return reply;
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn run_script(
        &self,
        attempt: &Attempt,
        repeat: bool,
    ) -> Result<ReserveReply, RedisError> {
        let call = &attempt.call;
        let script = Reserve {
            keys: &attempt.keys,
            request_id: &call.request_id,
            reservation_id: &attempt.reservation_id,
            user_id: &call.user_id,
            quantity: call.quantity,
            max_quantity: attempt.meta.max_quantity,
            reservation_ttl_ms: attempt.meta.reservation_ttl_ms,
            first_send_grace_ms: self.first_send_grace_ms,
            negative_cache_max: self.negative_cache_max,
            traceparent: attempt.traceparent.as_ref(),
            repeat,
            assume_window: self.assumes_window(Some(&attempt.keys)),
            now_override: None,
        };
        self.redis.reserve(&script).await
    }

    /// Whether a failover of this bucket's server, or of any, may just have happened: after a start or a
    /// reconnect nobody has told yet.
    pub(crate) fn assumes_window(&self, keys: Option<&BucketKeys>) -> bool {
        let fresh = |since: Instant| since.elapsed() < self.assume_window;
        fresh(self.started) || self.redis.connected_since(keys).is_none_or(fresh)
    }

    /// Adds where the reservation stands that the user already holds. It is a courtesy: without it
    /// the answer is still right.
    async fn with_status(
        &self,
        attempt: &Attempt,
        reply: &ReserveReply,
        mut body: v1::ReserveResponse,
    ) -> v1::ReserveResponse {
        if let Some(held) = &reply.reservation_id
            && let Ok(Some(record)) = self.redis.reservation(&attempt.keys, held).await
            && record.user_id == attempt.call.user_id
        {
            body.status = v1::ReservationStatus::from(record.status).into();
        }
        body
    }

    /// What a caller is told when there is no reply. After an attempt of unknown outcome everything
    /// is unknown, also when the next attempt surely did not run.
    fn script_failed(&self, attempt: &Attempt, error: &RedisError, after_unknown: bool) -> Fault {
        if error.kind() == ErrorKind::Broken {
            self.breaker
                .damaged(&attempt.call.scope, &error.to_string());
        } else if let Some(left_out) = self.redis_trouble.allow() {
            warn!(
                request_id = %attempt.call.request_id,
                redis_slot = attempt.keys.slot(),
                left_out,
                "no answer from redis: {error}"
            );
        }
        if after_unknown {
            return Fault::OutcomeUnknown;
        }
        match error.kind() {
            ErrorKind::OutcomeUnknown => Fault::OutcomeUnknown,
            ErrorKind::Unavailable | ErrorKind::Refused | ErrorKind::Broken => Fault::SystemBusy,
        }
    }

    fn lookup_failed(&self, scope: &Scope, error: &RedisError) -> Fault {
        if error.kind() == ErrorKind::Broken {
            self.breaker.damaged(scope, &error.to_string());
        } else if let Some(left_out) = self.redis_trouble.allow() {
            warn!(left_out, "the activity could not be read: {error}");
        }
        Fault::SystemBusy
    }

    fn report_damage(&self, scope: &Scope, what: &str) {
        if let Some(left_out) = self.damage.allow() {
            error!(
                activity_id = %scope.activity_id,
                sku_id = %scope.sku_id,
                activity_version = scope.version.get(),
                left_out,
                "operators must look at this activity: {what}"
            );
        }
    }

    /// Whether this reply lets its version be sold further.
    fn judge(&self, attempt: &Attempt, reply: &ReserveReply) {
        let scope = &attempt.call.scope;
        let what = || format!("{}: {:?}", reply.code, reply.status);
        match reply.code {
            ReserveCode::InvariantViolation => self.breaker.damaged(scope, &what()),
            // One reservation is wrong; its neighbours are not.
            ReserveCode::ReservationIdConflict => {
                self.report_damage(scope, &what());
                attempt.pass.sound();
            }
            _ => attempt.pass.sound(),
        }
    }

    fn log_reply(&self, attempt: &Attempt, reply: &ReserveReply, repeated: bool, began: Instant) {
        let scope = &attempt.call.scope;
        macro_rules! line {
            ($level:ident) => {
                $level!(
                    request_id = %attempt.call.request_id,
                    reservation_id = %attempt.reservation_id,
                    activity_id = %scope.activity_id,
                    sku_id = %scope.sku_id,
                    user_id_hash = user_id_hash(&attempt.call.user_id),
                    activity_version = scope.version.get(),
                    bucket_id = attempt.keys.scope().bucket_id.get(),
                    redis_slot = attempt.keys.slot(),
                    lua_code = reply.code.code(),
                    replay = reply.replay,
                    retry_count = u32::from(repeated),
                    latency_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                    trace_id = attempt.traceparent.as_ref().map(Traceparent::trace_id),
                    "{}",
                    reply.code
                )
            };
        }
        if reply.code == ReserveCode::Accepted && !reply.replay {
            line!(info);
        } else {
            line!(debug);
        }
    }

    /// The id that a request for one unit derives, for queries.
    pub(crate) fn derived_id(
        &self,
        meta: &Meta,
        user_id: &UserId,
        request_id: &RequestId,
    ) -> Option<ReservationId> {
        self.secrets
            .reservation_id(
                meta.secret_version,
                &meta.bucket.scope,
                user_id,
                request_id,
                seckill_state_machine::Quantity::ONE,
            )
            .ok()
    }
}
