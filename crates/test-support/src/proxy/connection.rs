//! One proxied connection: two directions, each a reader that decides and a writer that waits.
//!
//! The reader cuts the stream into frames, asks the hook, applies the mode and queues what is to be
//! written, with the time before which it must not be. So a delay keeps the order and the pace.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::framing::{Decoder, Handshake};
use super::{Dir, Frame, FrameAction, Mode, Sever, Shared, next_number};

/// Frames that may wait to be written in one direction. Then the reader stops reading, and the sender
/// feels it as it would feel a slow network.
const QUEUE: usize = 4_096;

/// What one read takes at most.
const READ_MAX: usize = 64 * 1_024;

/// Something for a writer to do.
enum Item {
    /// Write these bytes, not before the time.
    Write(Bytes, Option<Instant>),
    /// Cut the connection here.
    Cut,
    /// The other end has finished sending.
    Finish,
}

/// Why a connection is over.
enum End {
    /// Both sides have finished.
    Finished,
    /// A mode or a hook cut it.
    Cut,
    /// One side could not be reached or went away with a reset.
    Failed,
    /// The test ended it.
    Severed(Sever),
}

/// Counts a connection as open while it lives, however it ends.
struct OpenGuard<'a>(&'a Shared);

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        self.0.count(|counters| counters.open -= 1);
    }
}

/// The signal must have been subscribed to before the connection could be severed.
pub(super) async fn run(
    shared: Arc<Shared>,
    mut client: TcpStream,
    mut sever: watch::Receiver<(Sever, u64)>,
) {
    let id = next_number(&shared.next_connection);
    shared.count(|counters| {
        counters.connections += 1;
        counters.open += 1;
    });
    let _open = OpenGuard(&shared);
    let mut upstream = None;
    let end = tokio::select! {
        biased;
        _ = sever.changed() => End::Severed(sever.borrow().0),
        end = proxy(&shared, id, &mut client, &mut upstream) => end,
    };
    close(end, client, upstream).await;
}

/// Closes both sockets in the way that fits the end. A failure means that the peer has gone already.
async fn close(end: End, mut client: TcpStream, upstream: Option<TcpStream>) {
    match end {
        End::Finished => {}
        // What was passed on before the cut must arrive, so the server's side ends in order.
        End::Cut => {
            let _ = client.set_zero_linger();
        }
        End::Failed | End::Severed(Sever::Reset) => {
            let _ = client.set_zero_linger();
            if let Some(upstream) = upstream {
                let _ = upstream.set_zero_linger();
            }
        }
        End::Severed(Sever::Fin) => {
            finish(&mut client).await;
            if let Some(mut upstream) = upstream {
                finish(&mut upstream).await;
            }
        }
    }
}

/// Ends in order: a socket that is closed with unread bytes would send a reset instead.
async fn finish(stream: &mut TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = [0; 4_096];
    while matches!(stream.try_read(&mut rest), Ok(count) if count > 0) {}
}

async fn proxy(
    shared: &Shared,
    id: u64,
    client: &mut TcpStream,
    upstream: &mut Option<TcpStream>,
) -> End {
    let address = shared.upstream();
    let upstream = match TcpStream::connect(address).await {
        Ok(stream) => upstream.insert(stream),
        Err(_) => {
            // A black hole needs no server behind it.
            swallow_all(shared, client).await;
            return End::Failed;
        }
    };
    if client.set_nodelay(true).is_err() || upstream.set_nodelay(true).is_err() {
        return End::Failed;
    }
    let (client_read, client_write) = client.split();
    let (upstream_read, upstream_write) = upstream.split();
    let (to_server, server_items) = mpsc::channel(QUEUE);
    let (to_client, client_items) = mpsc::channel(QUEUE);
    let handshake = Arc::new(Handshake::default());
    let requests = Reader {
        shared,
        id,
        dir: Dir::ToServer,
        onward: to_server.clone(),
        back: to_client.clone(),
        cut: CutCount::default(),
    };
    let answers = Reader {
        shared,
        id,
        dir: Dir::ToClient,
        onward: to_client,
        back: to_server,
        cut: CutCount::default(),
    };
    let outcome = tokio::try_join!(
        requests.run(client_read, Arc::clone(&handshake)),
        write(shared, Dir::ToServer, upstream_write, server_items),
        answers.run(upstream_read, handshake),
        write(shared, Dir::ToClient, client_write, client_items),
    );
    outcome.err().unwrap_or(End::Finished)
}

/// Keeps a client without a server while the mode is [`Mode::BlackHole`].
async fn swallow_all(shared: &Shared, client: &mut TcpStream) {
    let mut mode = shared.mode.subscribe();
    let mut rest = vec![0; READ_MAX];
    let read_all =
        async { while matches!(client.read(&mut rest).await, Ok(count) if count > 0) {} };
    tokio::select! {
        () = read_all => {}
        _ = mode.wait_for(|(mode, _)| *mode != Mode::BlackHole) => {}
    }
}

/// Bytes that have passed since a cut was ordered.
#[derive(Default)]
struct CutCount {
    /// Which setting of the mode the count belongs to.
    setting: u64,
    passed: u64,
}

/// One direction's reader.
struct Reader<'a> {
    shared: &'a Shared,
    id: u64,
    dir: Dir,
    onward: mpsc::Sender<Item>,
    back: mpsc::Sender<Item>,
    cut: CutCount,
}

impl Reader<'_> {
    async fn run(mut self, mut read: ReadHalf<'_>, handshake: Arc<Handshake>) -> Result<(), End> {
        let mut decoder = Decoder::new(self.shared.framing, self.dir, &handshake);
        let mut buffer = vec![0; READ_MAX];
        let mut was_broken = false;
        loop {
            let count = read.read(&mut buffer).await.map_err(|_| End::Failed)?;
            let arrived = u64::try_from(count).unwrap_or(u64::MAX);
            let direction = self.dir.index();
            self.shared
                .count(|counters| counters.traffic[direction].bytes += arrived);
            if count == 0 {
                self.pass(decoder.rest(), None).await?;
                return queue(&self.onward, Item::Finish).await;
            }
            decoder.push(&buffer[..count]);
            while let Some(bytes) = decoder.next() {
                self.shared
                    .count(|counters| counters.traffic[direction].frames += 1);
                self.frame(bytes).await?;
            }
            if decoder.is_broken() && !was_broken {
                was_broken = true;
                self.shared.count(|counters| counters.malformed += 1);
            }
        }
    }

    async fn frame(&mut self, bytes: Bytes) -> Result<(), End> {
        let bytes = match &self.shared.rewrite {
            Some(rewrite) => rewrite(self.dir, bytes),
            None => bytes,
        };
        let frame = Frame::new(self.shared.framing, self.id, bytes.clone());
        match self.shared.ask_hook(self.dir, &frame) {
            FrameAction::Forward => self.pass(bytes, None).await,
            FrameAction::Drop => Ok(()),
            FrameAction::Replace(other) => self.pass(other, None).await,
            FrameAction::ReplyWith(answer) => queue(&self.back, Item::Write(answer, None)).await,
            FrameAction::Delay(delay) => self.pass(bytes, Some(delay)).await,
            FrameAction::Cut => self.cut_here().await,
            FrameAction::CutAfter(count) => {
                self.pass(bytes.slice(..count.min(bytes.len())), None)
                    .await?;
                self.cut_here().await
            }
        }
    }

    /// Applies the mode to bytes that the hook let through.
    async fn pass(&mut self, bytes: Bytes, delay: Option<Duration>) -> Result<(), End> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (mode, setting) = *self.shared.mode.borrow();
        let mut delay = delay.unwrap_or_default();
        match mode {
            Mode::BlackHole => return Ok(()),
            Mode::Swallow(dir) if dir == self.dir => return Ok(()),
            Mode::Delay(by, dir) if dir == self.dir => delay += by,
            Mode::CutAfter(limit, dir) if dir == self.dir => {
                return self.pass_until(bytes, limit, setting).await;
            }
            _ => {}
        }
        let due = (!delay.is_zero()).then(|| Instant::now() + delay);
        queue(&self.onward, Item::Write(bytes, due)).await
    }

    async fn pass_until(&mut self, bytes: Bytes, limit: u64, setting: u64) -> Result<(), End> {
        if self.cut.setting != setting {
            self.cut = CutCount { setting, passed: 0 };
        }
        let left = limit.saturating_sub(self.cut.passed);
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.cut.passed += len.min(left);
        if len < left {
            return queue(&self.onward, Item::Write(bytes, None)).await;
        }
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let part = bytes.slice(..left.min(bytes.len()));
        queue(&self.onward, Item::Write(part, None)).await?;
        self.cut_here().await
    }

    /// Nothing is read, and no hook asked, behind the cut: the writer ends the connection when it
    /// has written what stands before it.
    async fn cut_here(&self) -> Result<(), End> {
        queue(&self.onward, Item::Cut).await?;
        std::future::pending().await
    }
}

/// A writer that is gone has reported its own end.
async fn queue(items: &mpsc::Sender<Item>, item: Item) -> Result<(), End> {
    items.send(item).await.map_err(|_| End::Failed)
}

async fn write(
    shared: &Shared,
    dir: Dir,
    mut stream: WriteHalf<'_>,
    mut items: mpsc::Receiver<Item>,
) -> Result<(), End> {
    let mut mode = shared.mode.subscribe();
    while let Some(item) = items.recv().await {
        if let Item::Write(_, Some(due)) = &item {
            sleep_until(*due).await;
        }
        // The sender of the mode lives as long as the proxy.
        let _ = mode.wait_for(|(mode, _)| *mode != Mode::Hold(dir)).await;
        match item {
            Item::Write(bytes, _) => {
                stream.write_all(&bytes).await.map_err(|_| End::Failed)?;
                let written = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                shared.count(|counters| counters.traffic[dir.index()].forwarded += written);
            }
            Item::Cut => return Err(End::Cut),
            Item::Finish => stream.shutdown().await.map_err(|_| End::Failed)?,
        }
    }
    Ok(())
}
