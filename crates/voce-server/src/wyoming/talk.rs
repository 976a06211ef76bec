//! A Wyoming conversation: describe, transcribe, synthesize.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::WriteHalf;
use tokio::sync::mpsc;
use voce_audio::wav::put_s16le;
use voce_audio::{RawEncoding, RawFormat};
use voce_engine::EngineError;
use voce_engine::speaker::TextSender;

use super::event::{self, Event};
use crate::core::aside;
use crate::core::error::ServerError;
use crate::core::socket_io::StallGuard;
use crate::core::state::AppState;
use crate::ears::{Claim, HearRequest, Inlet, Intake, ListenEvent, Payload, Step};
use crate::mouth::{Ask, Utterance};

/// Silence after which a connection is closed; Home Assistant opens one for each request.
const IDLE: Duration = Duration::from_secs(60);
/// The language that is listed for models that do not say which theirs are: Home Assistant takes none without one.
const UNKNOWN: &str = "en";
/// Pieces of text that wait to be spoken.
const PIECES: usize = 64;

pub(super) struct Talk {
    write: WriteHalf<StallGuard>,
    events: mpsc::Receiver<io::Result<Event>>,
    state: AppState,
    language: Option<String>,
    /// What the utterance under way is heard in, where that is known.
    language_heard: Option<String>,
    model: Option<String>,
    listening: Option<Listening>,
    /// Texts of the utterance so far.
    texts: Vec<String>,
}

/// An utterance that is being heard. Its slot is taken with the first audio.
struct Listening {
    claim: Claim,
    format: RawFormat,
    intake: Option<Intake>,
}

impl Listening {
    async fn push(&mut self, audio: Vec<u8>, request: &HearRequest) -> Result<(), ServerError> {
        let hearing = self.claim.open(request).await?;
        let intake = match &mut self.intake {
            Some(intake) => intake,
            none => {
                let RawFormat { encoding, sample_rate, channels } = self.format;
                none.insert(Intake::new(Inlet::new(encoding, sample_rate, channels, hearing.rate())?))
            }
        };
        intake.push(Payload::Raw(audio.into()), hearing);
        Ok(())
    }

    async fn finish(&mut self, request: &HearRequest) -> Result<(), ServerError> {
        let hearing = self.claim.open(request).await?;
        if let Some(intake) = &mut self.intake {
            intake.finish(hearing);
        }
        hearing.finish();
        Ok(())
    }

    /// What comes of it next: a step of the stream, or the next piece of a long message.
    async fn next(&mut self, has_room: bool) -> Result<Next, End> {
        let samples = async {
            match &mut self.intake {
                Some(intake) => intake.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            step = self.claim.step() => Ok(Next::Step(step)),
            samples = samples, if has_room => Ok(Next::Samples(samples?)),
        }
    }
}

impl Talk {
    pub(super) fn new(
        write: WriteHalf<StallGuard>,
        events: mpsc::Receiver<io::Result<Event>>,
        state: AppState,
    ) -> Self {
        Self {
            write,
            events,
            state,
            language: None,
            language_heard: None,
            model: None,
            listening: None,
            texts: Vec::new(),
        }
    }

    /// Runs to the end of the connection.
    pub(super) async fn run(&mut self) {
        loop {
            let done = match self.next().await {
                Ok(Next::Event(event)) => self.handle(event).await,
                Ok(Next::Step(step)) => self.tell(step).await,
                Ok(Next::Samples(samples)) => {
                    if let Some(hearing) = self.listening.as_mut().and_then(|l| l.claim.hearing()) {
                        hearing.push(&samples);
                    }
                    Ok(())
                }
                Err(end) => Err(end),
            };
            match done {
                Ok(()) => {}
                Err(End::Gone) => return,
                Err(End::Broken(text)) => {
                    let _ = self.complain("bad_request", &text).await;
                    return;
                }
                Err(End::Bad(error)) => {
                    self.listening = None;
                    self.state.metrics.error(error.code());
                    if self.complain(error.code(), &error.message()).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// What the recogniser or the client says next.
    async fn next(&mut self) -> Result<Next, End> {
        let has_room = self.listening.as_ref().is_none_or(|l| l.claim.has_room());
        let is_idle = self.listening.as_ref().is_none_or(|l| l.intake.as_ref().is_none_or(Intake::is_idle));
        let heard = async {
            match &mut self.listening {
                Some(listening) => listening.next(has_room).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            next = heard => next,
            event = tokio::time::timeout(IDLE, self.events.recv()), if has_room && is_idle => match event {
                Ok(Some(Ok(event))) => Ok(Next::Event(event)),
                Ok(Some(Err(error))) if error.kind() == io::ErrorKind::InvalidData => Err(End::Broken(error.to_string())),
                _ => Err(End::Gone),
            },
        }
    }

    async fn complain(&mut self, code: &str, text: &str) -> io::Result<()> {
        self.send("error", json!({"text": text, "code": code})).await
    }

    async fn send(&mut self, kind: &str, data: Value) -> io::Result<()> {
        event::write(&mut self.write, &Event::new(kind, data)).await
    }

    fn request(&self) -> HearRequest {
        HearRequest { language: self.language.clone(), ..HearRequest::default() }
    }

    async fn handle(&mut self, mut event: Event) -> Result<(), End> {
        let text = |name: &str| event.data[name].as_str().map(str::to_owned);
        match event.kind.as_str() {
            "describe" => {
                let info = info(&self.state).await;
                self.send("info", info).await?;
            }
            "ping" => self.send("pong", json!({"text": text("text")})).await?,
            "transcribe" => {
                self.language = text("language").filter(|language| !language.is_empty());
                self.model = text("name");
            }
            "audio-start" => {
                let format = format(&event.data)?;
                // Names of other systems' models stand for the default.
                let ear = self.state.ear(self.model.as_deref()).or_else(|_| self.state.ear(None))?.clone();
                Inlet::check(format.sample_rate, format.channels)?;
                match ear.accept(&self.request()).await {
                    // Clients name one of the languages that were listed; this model says nothing of its own.
                    Err(ServerError::Engine(EngineError::Language { asked, has }))
                        if has.is_empty() && asked == UNKNOWN =>
                    {
                        self.language = None;
                    }
                    accepted => accepted?,
                }
                let language = ear.info().language_heard(self.language.as_deref()).map(str::to_owned);
                self.language_heard = language;
                self.listening = Some(Listening { claim: Claim::new(ear)?, format, intake: None });
                self.texts.clear();
                self.send("transcript-start", json!({"language": self.language_heard})).await?;
            }
            "audio-chunk" => {
                let request = self.request();
                if let Some(listening) = &mut self.listening {
                    listening.push(std::mem::take(&mut event.payload), &request).await?;
                }
            }
            "audio-stop" => {
                let request = self.request();
                if let Some(listening) = &mut self.listening {
                    listening.finish(&request).await?;
                }
            }
            "synthesize" => {
                let said = text("text").ok_or_else(|| ServerError::bad("text", "synthesize needs a text"))?;
                let ask = ask(&event.data["voice"]);
                self.synthesize(said, ask).await?;
            }
            "synthesize-start" => {
                let ask = ask(&event.data["voice"]);
                self.synthesize_live(ask).await?;
            }
            // Events of parts that are not here, such as wake words, are none of our business.
            _ => {}
        }
        Ok(())
    }

    /// Passes on what was heard; the end of the stream is the end of the utterance.
    async fn tell(&mut self, step: Step) -> Result<(), End> {
        match step {
            Step::Event(ListenEvent::Word(word)) => {
                self.send("transcript-chunk", json!({"text": format!("{} ", word.text)})).await?;
            }
            Step::Event(ListenEvent::Final(segment)) => {
                if !segment.text.is_empty() {
                    self.texts.push(segment.text);
                }
            }
            Step::Event(_) | Step::Room | Step::Saved(_) => {}
            Step::Failed(error) => return Err(End::Bad(error)),
            Step::Ended => {
                self.listening = None;
                let text = std::mem::take(&mut self.texts).join(" ");
                self.send("transcript", json!({"text": text, "language": self.language_heard})).await?;
                self.send("transcript-stop", Value::Null).await?;
            }
        }
        Ok(())
    }

    async fn synthesize(&mut self, text: String, ask: Ask) -> Result<(), End> {
        if text.len() > self.state.options.limits.text {
            return Err(End::Bad(ServerError::bad("text", "the text is too long: split it")));
        }
        let mouth = self.state.mouth(None)?.clone();
        let utterance = mouth.speak(text, ask).await?;
        self.speak(utterance).await
    }

    async fn speak(&mut self, mut utterance: Utterance) -> Result<(), End> {
        let format = json!({"rate": utterance.rate(), "width": 2, "channels": 1});
        self.send("audio-start", format.clone()).await?;
        while let Some(samples) = utterance.next().await {
            let mut payload = Vec::new();
            put_s16le(&samples?, &mut payload);
            event::write(
                &mut self.write,
                &Event { kind: "audio-chunk".into(), data: format.clone(), payload },
            )
            .await?;
        }
        self.send("audio-stop", Value::Null).await?;
        Ok(())
    }

    /// Text that comes piece by piece, spoken from its first sentence on.
    async fn synthesize_live(&mut self, ask: Ask) -> Result<(), End> {
        let mouth = self.state.mouth(None)?.clone();
        // A slot is taken with the first text.
        let first = loop {
            let event = tokio::time::timeout(IDLE, self.events.recv()).await;
            let Ok(Some(Ok(event))) = event else { return Err(End::Gone) };
            match event.kind.as_str() {
                "synthesize-chunk" => break event.data["text"].as_str().unwrap_or_default().to_owned(),
                "synthesize-stop" => {
                    self.send("synthesize-stopped", Value::Null).await?;
                    return Ok(());
                }
                _ => {}
            }
        };
        let (speaker, mut utterance) = mouth.speak_live(ask).await?;
        let (text, pieces) = mpsc::channel(PIECES);
        aside::detach(move || feed(speaker, pieces));
        let mut received = first.len();
        let _ = text.send(first).await;
        let mut text = Some(text);
        let format = json!({"rate": utterance.rate(), "width": 2, "channels": 1});
        let mut begun = false;
        loop {
            tokio::select! {
                biased;
                samples = utterance.next() => match samples {
                    Some(samples) => begun = self.live_chunk(samples?, &format, begun).await?,
                    None => break,
                },
                event = tokio::time::timeout(IDLE, self.events.recv()), if text.is_some() => {
                    let Ok(Some(Ok(event))) = event else { return Err(End::Gone) };
                    match event.kind.as_str() {
                        "synthesize-chunk" => {
                            let piece = event.data["text"].as_str().unwrap_or_default().to_owned();
                            received += piece.len();
                            if received > self.state.options.limits.text {
                                return Err(End::Bad(ServerError::bad("text", "the text is too long: split it")));
                            }
                            if let Some(sender) = &text {
                                let _ = sender.send(piece).await;
                            }
                        }
                        "synthesize-stop" => text = None,
                        // The same text as a whole, for servers that cannot stream.
                        _ => {}
                    }
                }
            }
        }
        if begun {
            self.send("audio-stop", Value::Null).await?;
        }
        self.send("synthesize-stopped", Value::Null).await?;
        Ok(())
    }

    async fn live_chunk(&mut self, samples: Vec<f32>, format: &Value, begun: bool) -> Result<bool, End> {
        if !begun {
            self.send("audio-start", format.clone()).await?;
        }
        let mut payload = Vec::new();
        put_s16le(&samples, &mut payload);
        event::write(&mut self.write, &Event { kind: "audio-chunk".into(), data: format.clone(), payload })
            .await?;
        Ok(true)
    }
}

/// What a voice's description asks for: its name, else its speaker's, and its language, as far as the model has them.
fn ask(voice: &Value) -> Ask {
    let text = |name: &str| voice[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    Ask {
        voice: text("name").or_else(|| text("speaker")),
        any_voice: true,
        language: text("language"),
        any_language: true,
        ..Ask::default()
    }
}

/// What this server can do, in Home Assistant's words.
async fn info(state: &AppState) -> Value {
    let attribution = json!({"name": "Voce", "url": ""});
    let part = |name: &str, languages: &[String]| {
        json!({
            "name": name, "description": name, "attribution": attribution, "installed": true,
            "version": env!("CARGO_PKG_VERSION"), "languages": languages,
        })
    };
    let english = vec![UNKNOWN.to_owned()];
    let models: Vec<Value> = state
        .ears
        .iter()
        .map(|ear| {
            let languages = ear.info().languages;
            part(ear.id(), if languages.is_empty() { &english } else { &languages })
        })
        .collect();
    let mut voices = Vec::new();
    if let Ok(mouth) = state.mouth(None) {
        let mut names = mouth.voice_names().await.unwrap_or_default();
        if names.is_empty() {
            names.push("default".into());
        }
        let languages = mouth.languages().await.unwrap_or_default();
        let languages = if languages.is_empty() { &english } else { &languages };
        voices.extend(names.iter().map(|name| part(name, languages)));
    }
    let program = |key: &str, parts: Vec<Value>, streaming: &str| {
        if parts.is_empty() {
            return json!([]);
        }
        let mut program = json!({
            "name": "voce", "description": "Voce", "attribution": attribution, "installed": true,
            "version": env!("CARGO_PKG_VERSION"),
        });
        program[key] = json!(parts);
        program[streaming] = json!(true);
        json!([program])
    };
    json!({
        "asr": program("models", models, "supports_transcript_streaming"),
        "tts": program("voices", voices, "supports_synthesize_streaming"),
        "handle": [], "intent": [], "wake": [], "mic": [], "snd": [],
    })
}

fn feed(mut speaker: TextSender, mut pieces: mpsc::Receiver<String>) {
    while let Some(piece) = pieces.blocking_recv() {
        if speaker.push(&piece).is_err() {
            return;
        }
    }
    let _ = speaker.finish();
}

/// The format of audio that is to come.
fn format(data: &Value) -> Result<RawFormat, ServerError> {
    let number = |name: &'static str, default: u64| data[name].as_u64().unwrap_or(default);
    // Wyoming's samples are signed integers of any width.
    let encoding = match number("width", 2) {
        1 => RawEncoding::S8,
        2 => RawEncoding::S16le,
        3 => RawEncoding::S24le,
        4 => RawEncoding::S32le,
        other => {
            return Err(ServerError::bad("width", format!("a width of {other} bytes: use 2 (or 1, 3, 4)")));
        }
    };
    let sample_rate = u32::try_from(number("rate", 16_000)).unwrap_or(u32::MAX);
    Ok(RawFormat { encoding, sample_rate, channels: number("channels", 1) as usize })
}

/// What comes next.
enum Next {
    Event(Event),
    Step(Step),
    /// The next piece of a long message.
    Samples(Vec<f32>),
}

/// Why an event was not handled.
enum End {
    Gone,
    /// What came is not Wyoming.
    Broken(String),
    Bad(ServerError),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        End::Gone
    }
}

impl From<ServerError> for End {
    fn from(error: ServerError) -> Self {
        End::Bad(error)
    }
}
