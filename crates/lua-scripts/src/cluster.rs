//! Who serves which slot of a Cluster.
//!
//! The map is drawn again when a server redirects a call, and once in a while as long as a server of the
//! map is not well or a slot has none. A server that is asked for the map is one that is well; those that
//! the URL names come last, since asking them may need a connection. Drawing never touches the
//! connections of a server that stays on the map, so what happens to one is not felt by the calls of the
//! others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use fred::types::Value;
use fred::types::config::Server;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::Error;
use crate::config::Target;
use crate::node::Node;

/// The slots of a Cluster.
const SLOTS: u16 = 16_384;

/// Between two drawings while something is wrong. An election takes seconds, and the whole of a
/// hundred processes then asks two hundred times a second.
const DRAW_PAUSE: Duration = Duration::from_millis(500);

/// What a server says that is no part of a Cluster.
const NO_CLUSTER: &str = "cluster support disabled";

/// Neighbouring slots of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    owner: Server,
}

/// The servers that own slots.
#[derive(Default)]
pub(crate) struct SlotMap {
    /// How often it was drawn.
    drawn: u64,
    /// Where each range begins and ends, and its server; in the order of the slots.
    ranges: Vec<(u16, u16, Arc<Node>)>,
    nodes: HashMap<Server, Arc<Node>>,
}

impl SlotMap {
    fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let behind = self.ranges.partition_point(|(first, _, _)| *first <= slot);
        let (_, last, node) = self.ranges.get(behind.checked_sub(1)?)?;
        (slot <= *last).then_some(node)
    }

    fn is_well(&self) -> bool {
        let served: u32 = self
            .ranges
            .iter()
            .map(|(first, last, _)| u32::from(last - first) + 1)
            .sum();
        served == u32::from(SLOTS) && self.nodes.values().all(|node| node.is_well())
    }
}

/// The servers of a Cluster.
pub(crate) struct Cluster {
    target: Target,
    map: RwLock<Arc<SlotMap>>,
    drawing: tokio::sync::Mutex<()>,
    /// Why the map could not be drawn.
    trouble: Mutex<Option<String>>,
}

/// A server, and the drawing that named it.
pub(crate) struct Routed {
    pub(crate) node: Arc<Node>,
    drawn: u64,
}

impl Cluster {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            map: RwLock::default(),
            drawing: tokio::sync::Mutex::new(()),
            trouble: Mutex::new(None),
        }
    }

    fn map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.values().cloned().collect()
    }

    /// Who serves a slot.
    pub(crate) fn owner(&self, slot: u16) -> Result<Routed, Error> {
        let map = self.map();
        let node = map.owner(slot).cloned().ok_or_else(|| self.nobody())?;
        let drawn = map.drawn;
        Ok(Routed { node, drawn })
    }

    /// Any server, turn by turn another one; if possible one that is well.
    pub(crate) fn any(&self, turn: usize) -> Result<Routed, Error> {
        let map = self.map();
        let mut nodes: Vec<&Arc<Node>> = map.nodes.values().collect();
        if nodes.iter().any(|node| node.is_well()) {
            nodes.retain(|node| node.is_well());
        }
        let node = nodes
            .get(turn % nodes.len().max(1))
            .ok_or_else(|| self.nobody())?;
        Ok(Routed {
            node: Arc::clone(node),
            drawn: map.drawn,
        })
    }

    fn nobody(&self) -> Error {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = trouble.as_deref().unwrap_or("no server serves the slot");
        Error::NotConnected(reason.to_owned())
    }

    /// Draws the map again because its server has redirected a call, unless that was done since.
    pub(crate) async fn redirected(&self, routed: &Routed) -> Result<(), Error> {
        // It knows best.
        self.draw(routed.drawn, Some(&routed.node)).await
    }

    /// Draws the map for the first time.
    pub(crate) async fn draw_first(&self) {
        if let Err(error) = self.draw(0, None).await {
            self.tell(&error);
        }
    }

    /// Draws the map while something is wrong, until stopped.
    pub(crate) async fn keep(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(DRAW_PAUSE) => {}
            }
            let map = self.map();
            if map.is_well() {
                continue;
            }
            let drawn = tokio::select! {
                () = stop.cancelled() => return,
                drawn = self.draw(map.drawn, None) => drawn,
            };
            if let Err(error) = drawn {
                self.tell(&error);
            }
        }
    }

    /// Tells a new reason once.
    fn tell(&self, error: &Error) {
        let reason = error.to_string();
        let told = match reason.contains(NO_CLUSTER) {
            true => "the url says redis-cluster://, but the server is no cluster; use redis://",
            false => &reason,
        };
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.as_deref() != Some(told) {
            warn!(reason, "the slots of the redis cluster are not known");
            *trouble = Some(told.to_owned());
        }
    }

    /// Draws the map unless it was drawn since `seen`.
    async fn draw(&self, seen: u64, best: Option<&Arc<Node>>) -> Result<(), Error> {
        let _one_at_a_time = self.drawing.lock().await;
        let old = self.map();
        if old.drawn != seen {
            return Ok(());
        }
        let mut known = old.nodes.clone();
        let ranges = self.look(&mut known, best).await?;
        let mut map = SlotMap {
            drawn: seen + 1,
            ..SlotMap::default()
        };
        let mut new = Vec::new();
        for Range { first, last, owner } in ranges {
            let node = match known.get(&owner) {
                Some(node) => Arc::clone(node),
                None => Node::start(&self.target, &owner)?,
            };
            if !old.nodes.contains_key(&owner) && !map.nodes.contains_key(&owner) {
                info!(server = %owner, "a server of the redis cluster owns slots");
                new.push(Arc::clone(&node));
            }
            known.insert(owner.clone(), Arc::clone(&node));
            map.nodes.insert(owner, Arc::clone(&node));
            map.ranges.push((first, last, node));
        }
        // The old map goes on meanwhile: whoever it leads wrong is redirected, and waits for this.
        join_all(new.iter().map(|node| node.first_connection())).await;
        for gone in old.nodes.keys().filter(|old| !map.nodes.contains_key(old)) {
            info!(server = %gone, "a server of the redis cluster owns no slots any more");
        }
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Asks one server after the other until one tells.
    async fn look(
        &self,
        known: &mut HashMap<Server, Arc<Node>>,
        best: Option<&Arc<Node>>,
    ) -> Result<Vec<Range>, Error> {
        let well = known.values().filter(|node| node.is_well());
        let well: Vec<Arc<Node>> = best.into_iter().chain(well).cloned().collect();
        let mut failure = None;
        for node in well {
            match ask(&node).await {
                Ok(ranges) => return Ok(ranges),
                Err(error) => failure = Some(error),
            }
        }
        for server in self.target.servers() {
            let node = match known.get(&server) {
                Some(node) => Arc::clone(node),
                None => Node::start(&self.target, &server)?,
            };
            known.insert(server, Arc::clone(&node));
            node.first_connection().await;
            match ask(&node).await {
                Ok(ranges) => return Ok(ranges),
                Err(Error::NotConnected(reason)) => {
                    failure = Some(Error::NotConnected(node.trouble().unwrap_or(reason)));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| self.nobody()))
    }
}

async fn ask(node: &Node) -> Result<Vec<Range>, Error> {
    let reply = node.send(0, "CLUSTER SLOTS", Vec::new()).await;
    let reply = reply.map_err(|error| Error::from_client("cluster slots", &error))?;
    let ranges = ranges(&reply, node.server())
        .ok_or_else(|| Error::malformed("cluster slots", format!("{reply:?}")))?;
    debug!(server = %node.server(), ranges = ranges.len(), "drew the slots of the redis cluster");
    Ok(ranges)
}

/// `[first, last, [host, port, …], …]` for each range; the first server is the one that takes writes. One
/// that does not know its own name says nothing, which means the name by which it was asked.
fn ranges(reply: &Value, asked: &Server) -> Option<Vec<Range>> {
    let number = |value: &Value| value.as_i64().and_then(|number| u16::try_from(number).ok());
    let Value::Array(reply) = reply else {
        return None;
    };
    let mut ranges = Vec::with_capacity(reply.len());
    for range in reply {
        let Value::Array(range) = range else {
            return None;
        };
        let [first, last, Value::Array(owner), ..] = range.as_slice() else {
            return None;
        };
        let [host, port, ..] = owner.as_slice() else {
            return None;
        };
        let host = host.as_str().filter(|host| !host.is_empty() && host != "?");
        let host = host.map_or_else(|| asked.host.to_string(), |host| host.into_owned());
        ranges.push(Range {
            first: number(first)?,
            last: number(last).filter(|last| *last < SLOTS)?,
            owner: Server::new(host, number(port)?),
        });
    }
    ranges.sort_by_key(|range| range.first);
    let is_sound = ranges.iter().all(|range| range.first <= range.last)
        && ranges.windows(2).all(|two| two[0].last < two[1].first);
    (is_sound && !ranges.is_empty()).then_some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: &str, port: i64) -> Value {
        let owner = Value::Array(vec![host.into(), port.into(), "id".into()]);
        let replica = Value::Array(vec!["r".into(), 1.into(), "id".into()]);
        Value::Array(vec![first.into(), last.into(), owner, replica])
    }

    #[test]
    fn the_map_is_read_in_the_order_of_the_slots() {
        let asked = Server::new("asked", 1);
        let reply = Value::Array(vec![range(8_192, 16_383, "b", 2), range(0, 8_191, "", 1)]);
        let read = ranges(&reply, &asked).unwrap();
        let owners: Vec<&Server> = read.iter().map(|range| &range.owner).collect();
        assert_eq!(owners, [&asked, &Server::new("b", 2)]);
    }

    #[test]
    fn a_map_that_contradicts_itself_is_none() {
        let asked = Server::new("asked", 1);
        for reply in [
            Value::Array(Vec::new()),
            Value::Null,
            Value::Array(vec![range(0, 16_384, "a", 1)]),
            Value::Array(vec![range(5, 4, "a", 1)]),
            Value::Array(vec![range(0, 9, "a", 1), range(9, 10, "b", 1)]),
            Value::Array(vec![range(0, 9, "a", 70_000)]),
            Value::Array(vec![Value::Array(vec![0.into(), 9.into()])]),
        ] {
            assert_eq!(ranges(&reply, &asked), None, "{reply:?}");
        }
    }
}
