//! Rooms: one producer sends codes of a codec and texts, many listeners hear them as Ogg Opus.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, oneshot};
use voce_audio::AudioFormat;
use voce_engine::EngineError;
use voce_engine::codec::{Codec, FrameDecoder};

use super::tags::{Tag, handshake};
use crate::core::aside;
use crate::core::audio_out::Encoder;
use crate::core::budget::{Budget, Share};
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::limits;
use crate::core::query::{Query, short};
use crate::core::state::AppState;
use crate::core::ws::{self, Frame, Gone, Upgrade, Wire};

/// Messages that wait for a listener; one that is further behind misses some.
const QUEUE: usize = 10;
/// Frames of codes that wait to be decoded.
const FRAMES: usize = 32;
/// The header that names a room.
const HEADER: &str = "room_id";
/// Threads of a producer's decoder.
const THREADS: usize = 1;

/// How rooms are served.
pub struct RoomsOptions {
    /// Their name among the server's models.
    pub id: String,
    /// The rooms.
    pub rooms: Vec<String>,
    /// The room of those who name none.
    pub default_room: Option<String>,
    /// Opens the codec of the codes that producers send.
    pub open: Box<dyn Fn() -> Result<Codec, EngineError> + Send + Sync>,
}

/// Rooms that share a codec.
pub(crate) struct Rooms {
    id: String,
    rooms: HashMap<String, Arc<Room>>,
    default_room: Option<String>,
    open: Arc<dyn Fn() -> Result<Codec, EngineError> + Send + Sync>,
    codec: Mutex<Option<Arc<Mutex<Codec>>>>,
    budget: Arc<Budget>,
}

/// A room.
struct Room {
    channel: broadcast::Sender<Bytes>,
    has_producer: AtomicBool,
    /// The pages that listeners need before all others.
    head: Bytes,
    /// One for as long as the room is there, so that its pages go on from one producer to the next.
    voice: Mutex<Encoder>,
}

/// The producer's place in a room; dropping it makes room for another.
struct Place(Arc<Room>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.has_producer.store(false, Ordering::Release);
    }
}

impl Room {
    fn new(rate: u32) -> Result<Self, ServerError> {
        let mut voice = Encoder::new(AudioFormat::OggOpus, rate)?;
        let head = Tag::Audio.message(&voice.write(&[])?).into();
        let (channel, _) = broadcast::channel(QUEUE);
        Ok(Self { channel, has_producer: AtomicBool::new(false), head, voice: Mutex::new(voice) })
    }

    fn enter(self: &Arc<Self>) -> Result<Place, ServerError> {
        match self.has_producer.swap(true, Ordering::AcqRel) {
            true => Err(taken()),
            false => Ok(Place(self.clone())),
        }
    }

    /// Tells all who listen; that nobody does is no error.
    fn tell(&self, message: Bytes) {
        let _ = self.channel.send(message);
    }
}

fn taken() -> ServerError {
    ServerError::Busy { what: "producer", slots: 1 }
}

/// Rate of what listeners hear.
const RATE: u32 = 24_000;

impl Rooms {
    pub(crate) fn new(options: RoomsOptions, budget: &Arc<Budget>) -> Result<Self, ServerError> {
        let room = |name: String| Ok((name, Arc::new(Room::new(RATE)?)));
        let rooms = options.rooms.into_iter().map(room).collect::<Result<_, ServerError>>()?;
        Ok(Self {
            id: options.id,
            rooms,
            default_room: options.default_room,
            open: options.open.into(),
            codec: Mutex::default(),
            budget: budget.clone(),
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Opens the codec. Blocks.
    pub(crate) fn load(&self) -> Result<(), EngineError> {
        let codec = (self.open)()?;
        *self.codec.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Mutex::new(codec)));
        Ok(())
    }

    /// A decoder for one producer. Blocks.
    fn decoder(&self) -> Result<FrameDecoder, ServerError> {
        let codec = self.codec.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let codec = codec.ok_or(ServerError::NotReady)?;
        let codec = codec.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(codec.frames(THREADS)?)
    }

    fn room(&self, headers: &HeaderMap, query: &Query) -> Result<Arc<Room>, ServerError> {
        let named = headers.get(HEADER).map(|v| v.to_str().unwrap_or_default());
        let named = named.or_else(|| query.get(HEADER)).or(self.default_room.as_deref());
        let Some(name) = named else {
            return Err(ServerError::bad(HEADER, "no room is named: send the header or field room_id"));
        };
        let unknown = || ServerError::bad(HEADER, format!("there is no room '{}'", short(name)));
        self.rooms.get(name).cloned().ok_or_else(unknown)
    }

    fn share(&self) -> Result<Share, ServerError> {
        let share = self.budget.decoders.take(&Caller::current(), 1);
        share.map_err(|_| ServerError::Overloaded("decoders"))
    }
}

/// A listener's connection.
pub(crate) async fn listen(
    State(state): State<AppState>,
    uri: Uri,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let query = Query::parse(query.as_deref().unwrap_or_default());
    let room = state.rooms(state.mounted(uri.path()))?.room(&headers, &query)?;
    let ping = state.options.limits.room_ping;
    Ok(ws::upgrade(&state, upgrade, limits::MAX_CONTROL_MESSAGE, move |mut wire| async move {
        if let Ok(frame) = hear(&mut wire, &room, ping).await {
            wire.end(frame).await;
        }
    }))
}

async fn hear(wire: &mut Wire, room: &Room, every: Duration) -> Result<Frame, Gone> {
    let mut messages = room.channel.subscribe();
    wire.binary(handshake()).await?;
    wire.binary(room.head.clone()).await?;
    let mut ping = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    loop {
        tokio::select! {
            biased;
            message = messages.recv() => match message {
                Ok(message) => wire.binary(message).await?,
                // What a slow listener has missed is over.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return Ok(Frame::Stop),
            },
            _ = ping.tick() => wire.binary(Tag::Ping.message(&[])).await?,
            frame = wire.recv() => match frame {
                // Listeners have nothing to say.
                Frame::Text(_) | Frame::Binary(_) => {}
                other => return Ok(other),
            }
        }
    }
}

/// A producer's connection. The room is taken with the first message.
pub(crate) async fn send(
    State(state): State<AppState>,
    uri: Uri,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let query = Query::parse(query.as_deref().unwrap_or_default());
    let rooms = state.rooms(state.mounted(uri.path()))?.clone();
    let room = rooms.room(&headers, &query)?;
    if room.has_producer.load(Ordering::Acquire) {
        return Err(taken());
    }
    let for_run = state.clone();
    Ok(ws::upgrade(&state, upgrade, limits::MAX_CONTROL_MESSAGE, move |mut wire| async move {
        match Box::pin(produce(&for_run, &mut wire, &rooms, &room)).await {
            Ok(frame) => wire.end(frame).await,
            Err(error) => {
                for_run.metrics.error(error.code());
                let _ = wire.binary(Tag::Error.message(error.message().as_bytes())).await;
                wire.fail(&error).await;
            }
        }
    }))
}

/// What a producer has in a room.
struct Producer {
    /// To the decoder.
    frames: mpsc::Sender<Vec<u32>>,
    failed: oneshot::Receiver<ServerError>,
}

impl Producer {
    fn start(rooms: &Arc<Rooms>, room: &Arc<Room>) -> Result<Self, ServerError> {
        let (place, share) = (room.enter()?, rooms.share()?);
        let (frames, queue) = mpsc::channel(FRAMES);
        let (tell, failed) = oneshot::channel();
        let rooms = rooms.clone();
        aside::detach(move || {
            let _share = share;
            if let Err(error) = decode(&rooms, &place.0, queue) {
                let _ = tell.send(error);
            }
        });
        Ok(Self { frames, failed })
    }
}

/// Decodes a producer's frames until no more come.
fn decode(rooms: &Rooms, room: &Room, mut queue: mpsc::Receiver<Vec<u32>>) -> Result<(), ServerError> {
    let mut decoder = rooms.decoder()?;
    let mut resampler = voce_audio::Resampler::new(decoder.info().output_rate as u32, RATE);
    let mut samples = Vec::new();
    while let Some(codes) = queue.blocking_recv() {
        samples.clear();
        resampler.process(decoder.decode(&codes)?, &mut samples);
        let bytes = room.voice.lock().unwrap_or_else(PoisonError::into_inner).write(&samples)?;
        if !bytes.is_empty() {
            room.tell(Tag::Audio.message(&bytes).into());
        }
    }
    Ok(())
}

async fn produce(
    state: &AppState,
    wire: &mut Wire,
    rooms: &Arc<Rooms>,
    room: &Arc<Room>,
) -> Result<Frame, ServerError> {
    let mut producer: Option<Producer> = None;
    let idle = state.options.limits.slot_idle;
    loop {
        let failed = async {
            match &mut producer {
                Some(producer) => (&mut producer.failed).await,
                None => std::future::pending().await,
            }
        };
        let frame = tokio::select! {
            biased;
            error = failed => return Err(error.unwrap_or(ServerError::Internal)),
            frame = wire.recv() => frame,
            // A room is not held by one who brings nothing.
            () = tokio::time::sleep(idle) => return Err(ServerError::Idle),
        };
        let data = match frame {
            Frame::Binary(data) => data,
            Frame::Text(_) => continue,
            other => return Ok(other),
        };
        let (tag, rest) = Tag::read(&data).ok_or_else(|| {
            ServerError::malformed("the message has no or an unknown first byte: 2 is text and 9 is codes")
        })?;
        if !matches!(tag, Tag::Text | Tag::Codes) {
            continue;
        }
        let producer = match &mut producer {
            Some(producer) => producer,
            none => none.insert(Producer::start(rooms, room)?),
        };
        if tag == Tag::Text {
            room.tell(data);
        } else {
            // A decoder that has failed says why by itself.
            let _ = producer.frames.send(codes(rest)?).await;
        }
    }
}

pub(super) fn codes(bytes: &[u8]) -> Result<Vec<u32>, ServerError> {
    let (codes, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(ServerError::malformed("codes are 32 bits each, little endian: the message is cut off"));
    }
    Ok(codes.iter().map(|code| u32::from_le_bytes(*code)).collect())
}
