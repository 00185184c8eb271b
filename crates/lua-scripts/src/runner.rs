//! Runs a script: EVALSHA, and when the node does not know it, one SCRIPT LOAD for all callers that
//! noticed at once, then EVALSHA again.

use std::sync::atomic::Ordering;

use fred::error::Error as ClientError;
use fred::types::Value;
use seckill_key_layout::BucketKeys;

use crate::error::{is_moved, is_no_script};
use crate::node::Node;
use crate::redis::Route;
use crate::scripts::{Kind, Script};
use crate::{Error, Redis};

/// How often a call is repeated after an answer that proves that it did not run. Each round is either
/// a redirection of the cluster or a flushed script cache; more than this many in a row for one call
/// means that somebody empties the cache all the time.
const ROUNDS_MAX: usize = 4;

/// The embedded scripts with their digests.
pub(crate) struct Scripts(Vec<Loadable>);

struct Loadable {
    source: &'static str,
    sha: fred::bytes_utils::Str,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let loadable = |kind: Kind| Loadable {
            source: kind.source(),
            sha: fred::util::sha1_hash(kind.source()).into(),
        };
        Self(Kind::ALL.into_iter().map(loadable).collect())
    }

    fn get(&self, kind: Kind) -> &Loadable {
        &self.0[kind as usize]
    }
}

/// One EVALSHA, encoded once and sent as often as needed.
pub(crate) struct Call {
    kind: Kind,
    arguments: Vec<Value>,
    slot: Option<u16>,
}

impl Redis {
    pub(crate) fn encode<S: Script>(&self, script: &S, keys: &BucketKeys) -> Call {
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
            arguments,
            slot: self.slot(keys),
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
        S::parse(self.evaluate(self.turn(), &call).await?)
    }

    /// Sends until the call ran, or may have run, or was refused.
    pub(crate) async fn evaluate(&self, turn: usize, call: &Call) -> Result<Value, Error> {
        let name = call.kind.name();
        let mut round = 1;
        loop {
            let route = self.server(turn, call.slot)?;
            let node = route.node();
            let generation = node.loads(call.kind).generation.load(Ordering::Acquire);
            let error = match node.send(turn, "EVALSHA", call.arguments.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if round == ROUNDS_MAX {
                return Err(Error::from_client(name, &error));
            }
            if is_no_script(&error) {
                self.load(turn, node, call.kind, generation).await?;
            } else if is_moved(&error) {
                follow(&route, name, &error).await?;
            } else {
                return Err(Error::from_client(name, &error));
            }
            round += 1;
        }
    }

    /// Loads a script into a server, unless another caller did since `generation`.
    async fn load(
        &self,
        turn: usize,
        node: &Node,
        kind: Kind,
        generation: u64,
    ) -> Result<(), Error> {
        let loads = node.loads(kind);
        let _one_at_a_time = loads.loading.lock().await;
        if loads.generation.load(Ordering::Acquire) != generation {
            return Ok(());
        }
        let source = self.scripts().get(kind).source;
        // The call itself surely did not run, whatever becomes of the load.
        node.send(turn, "SCRIPT LOAD", vec![source.into()])
            .await
            .map_err(|error| Error::NotConnected(format!("script load: {error}")))?;
        loads.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Runs a plain command, again where the Cluster redirected it.
    pub(crate) async fn command(
        &self,
        name: &'static str,
        slot: Option<u16>,
        arguments: Vec<Value>,
    ) -> Result<Value, Error> {
        let _permit = self.permit()?;
        let turn = self.turn();
        let mut round = 1;
        loop {
            let route = self.server(turn, slot)?;
            let error = match route.node().send(turn, name, arguments.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if round == ROUNDS_MAX || !is_moved(&error) {
                return Err(Error::from_client(name, &error));
            }
            follow(&route, name, &error).await?;
            round += 1;
        }
    }
}

/// Finds the owner of the slot. Without one the call has still been refused, and nothing else.
async fn follow(route: &Route, name: &'static str, moved: &ClientError) -> Result<(), Error> {
    let drawn = route.redirected().await;
    drawn.map_err(|_| Error::from_client(name, moved))
}
