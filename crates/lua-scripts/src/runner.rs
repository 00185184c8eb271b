//! Runs a script: EVALSHA, and when the node does not know it, one SCRIPT LOAD for all callers that
//! noticed at once, then EVALSHA again.

use std::sync::atomic::{AtomicU64, Ordering};

use fred::clients::{Client, WithOptions};
use fred::error::Error as ClientError;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use seckill_key_layout::BucketKeys;
use tokio::sync::Mutex;

use crate::error::{is_from_replica, is_no_script, is_redirection};
use crate::scripts::{Kind, Script};
use crate::{Error, Redis};

/// How often a call is repeated after an answer that proves that it did not run. Each round is either
/// a redirection of the cluster or a flushed script cache; more than this many in a row for one call
/// means that somebody empties the cache all the time.
const ROUNDS_MAX: usize = 4;

/// The embedded scripts with their digests, and how often each was loaded.
pub(crate) struct Scripts(Vec<Loadable>);

/// Neighbouring slots whose loads count as one. A cluster's nodes own ranges of thousands of slots, so
/// such a group is on one node; where a border goes through it, a load that was not for one's own
/// node costs one more round.
const SLOTS_TOGETHER: u16 = 256;

/// Groups of the 16,384 slots. Standalone servers need the first one alone.
pub(crate) const SLOT_GROUPS: usize = 16_384 / SLOTS_TOGETHER as usize;

struct Loadable {
    source: &'static str,
    sha: fred::bytes_utils::Str,
    loads: Vec<Loads>,
}

/// The loads of one script into one node.
#[derive(Default)]
struct Loads {
    /// Counts them, so that a caller can tell whether somebody loaded it since it last tried.
    generation: AtomicU64,
    loading: Mutex<()>,
}

/// Which of a script's [`Loads`] belong to a call.
fn group(route: &ClusterHash) -> usize {
    match route {
        ClusterHash::Custom(slot) => usize::from(slot / SLOTS_TOGETHER) % SLOT_GROUPS,
        _ => 0,
    }
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let loadable = |kind: Kind| Loadable {
            source: kind.source(),
            sha: fred::util::sha1_hash(kind.source()).into(),
            loads: std::iter::repeat_with(Loads::default)
                .take(SLOT_GROUPS)
                .collect(),
        };
        Self(Kind::ALL.into_iter().map(loadable).collect())
    }

    fn get(&self, kind: Kind) -> &Loadable {
        &self.0[kind as usize]
    }

    fn loads(&self, call: &Call) -> &Loads {
        &self.get(call.kind).loads[group(&call.route)]
    }
}

/// One EVALSHA, encoded once and sent as often as needed.
pub(crate) struct Call {
    pub(crate) kind: Kind,
    command: CustomCommand,
    arguments: Vec<Value>,
    route: ClusterHash,
}

impl Redis {
    pub(crate) fn encode<S: Script>(&self, script: &S, keys: &BucketKeys) -> Call {
        let route = self
            .route(keys)
            .map_or(ClusterHash::Random, ClusterHash::Custom);
        let mut arguments = Vec::with_capacity(2 + S::KEYS + S::ARGS);
        arguments.push(Value::String(self.scripts().get(S::KIND).sha.clone()));
        // Their number comes first, and is known only once they are there.
        arguments.push(Value::Null);
        script.keys(&mut arguments);
        let declared = arguments.len() - 2;
        arguments[1] = Value::Integer(i64::try_from(declared).unwrap_or(i64::MAX));
        script.args(&mut arguments);
        Call {
            kind: S::KIND,
            command: CustomCommand::new_static("EVALSHA", route.clone(), false),
            arguments,
            route,
        }
    }

    /// Runs a script and reads its answer.
    pub(crate) async fn run<S: Script>(
        &self,
        script: &S,
        keys: &BucketKeys,
    ) -> Result<S::Reply, Error> {
        let _permit = self.permit()?;
        let call = self.encode(script, keys);
        let reply = self.evaluate(self.client(), &call).await?;
        S::parse(reply)
    }

    /// Sends until the call ran, or may have run, or was refused.
    pub(crate) async fn evaluate(
        &self,
        client: &WithOptions<Client>,
        call: &Call,
    ) -> Result<Value, Error> {
        let loads = self.scripts().loads(call);
        let mut round = 1;
        loop {
            let generation = loads.generation.load(Ordering::Acquire);
            let outcome = send(client, call).await;
            self.hear(group(&call.route), &outcome);
            let error = match outcome {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if round == ROUNDS_MAX {
                return Err(Error::from_client(call.kind.name(), &error));
            }
            if is_no_script(&error) {
                self.load(client, call, generation).await?;
            } else if !is_redirection(&error) {
                return Err(self.refused(call.kind.name(), &error));
            }
            round += 1;
        }
    }

    /// Loads the script into the call's node, unless another caller did since `generation`.
    async fn load(
        &self,
        client: &WithOptions<Client>,
        call: &Call,
        generation: u64,
    ) -> Result<(), Error> {
        let loads = self.scripts().loads(call);
        let _one_at_a_time = loads.loading.lock().await;
        if loads.generation.load(Ordering::Acquire) != generation {
            return Ok(());
        }
        let source = self.scripts().get(call.kind).source;
        let command = CustomCommand::new_static("SCRIPT LOAD", call.route.clone(), false);
        // The call itself surely did not run, whatever becomes of the load.
        client
            .custom::<Value, _>(command, vec![source])
            .await
            .map_err(|error| Error::NotConnected(format!("script load: {error}")))?;
        loads.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

impl Redis {
    /// Runs a plain command, again where the cluster redirected it.
    pub(crate) async fn repeat_redirected(
        &self,
        name: &'static str,
        route: ClusterHash,
        arguments: Vec<Value>,
    ) -> Result<Value, Error> {
        let client = self.client();
        let mut round = 1;
        loop {
            let command = CustomCommand::new_static(name, route.clone(), false);
            let outcome = client.custom(command, arguments.clone()).await;
            self.hear(group(&route), &outcome);
            match outcome {
                Err(error) if is_redirection(&error) && round < ROUNDS_MAX => round += 1,
                result => return result.map_err(|error| self.refused(name, &error)),
            }
        }
    }

    /// Sorts an error, and looks for the primary when a replica has answered.
    fn refused(&self, name: &'static str, error: &ClientError) -> Error {
        if is_from_replica(error) {
            self.doubt_connections();
        }
        Error::from_client(name, error)
    }
}

async fn send(client: &WithOptions<Client>, call: &Call) -> Result<Value, ClientError> {
    client
        .custom(call.command.clone(), call.arguments.clone())
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_into_one_node_does_not_count_for_another() {
        assert_eq!(group(&ClusterHash::Random), 0);
        assert_eq!(
            group(&ClusterHash::Custom(0)),
            group(&ClusterHash::Custom(255))
        );
        assert_eq!(group(&ClusterHash::Custom(16_383)), SLOT_GROUPS - 1);
        // Where three nodes share the slots evenly, their ranges begin here.
        let nodes = [0, 5_461, 10_923].map(|slot| group(&ClusterHash::Custom(slot + 256)));
        assert!(nodes[0] < nodes[1] && nodes[1] < nodes[2]);
    }
}
