//! The one table of routes: the router is built from it, and the test that walks it proves that each needs a key.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use super::mounts::{Mount, Serves};
use super::state::AppState;
use super::{auth, echo, health, origin, static_files, watch};
use crate::jobs::routes as jobs;
use crate::{deepgram, handover, moshi, openai, page, rnnt_v2};

/// A route as the table has it.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) methods: &'static [&'static str],
    /// Needs no key.
    pub(crate) open: bool,
    handler: MethodRouter<AppState>,
}

/// A route as others may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// Its path, parameters in braces.
    pub path: &'static str,
    /// Its methods.
    pub methods: &'static [&'static str],
    /// Whether it answers without a key.
    pub open: bool,
}

/// Every route of the server.
pub fn route_table() -> Vec<RouteInfo> {
    table().iter().map(|r| RouteInfo { path: r.path, methods: r.methods, open: r.open }).collect()
}

const GET: &[&str] = &["GET"];
const POST: &[&str] = &["POST"];
const BOTH: &[&str] = &["GET", "POST"];

fn asr_route() -> MethodRouter<AppState> {
    get(moshi::asr::connect).post(moshi::asr::file)
}

fn tts_route() -> MethodRouter<AppState> {
    get(moshi::tts::connect).post(moshi::tts::post)
}

fn mounted_route(serves: Serves) -> MethodRouter<AppState> {
    match serves {
        Serves::Hearing => asr_route(),
        Serves::Speech => tts_route(),
        Serves::Dialogue => get(moshi::chat::connect),
        Serves::RoomSend => get(moshi::rooms::send),
        Serves::RoomListen => get(moshi::rooms::listen),
    }
}

/// Whether a path has a route of another kind than this.
pub(crate) fn is_taken(path: &str, serves: Serves) -> bool {
    let own = match serves {
        Serves::Hearing => Some(moshi::info::ASR_PATH),
        Serves::Speech => Some(moshi::info::TTS_PATH),
        Serves::Dialogue => Some(moshi::info::CHAT_PATH),
        Serves::RoomSend | Serves::RoomListen => None,
    };
    let matches = |route: &Route| match route.path.split_once('{') {
        Some((before, _)) => path.starts_with(before),
        None => route.path == path,
    };
    own != Some(path) && table().iter().any(matches)
}

pub(crate) fn table() -> Vec<Route> {
    let open = |path, handler| Route { path, methods: GET, open: true, handler };
    let keyed = |path, methods, handler| Route { path, methods, open: false, handler };
    vec![
        open("/", get(page::html)),
        open("/page.css", get(page::css)),
        open("/page.js", get(page::js)),
        open("/mic.js", get(page::mic)),
        open("/favicon.svg", get(page::icon)),
        open("/livez", get(health::live)),
        open("/readyz", get(health::ready)),
        open("/health", get(health::ready)),
        open("/v1/health/live", get(health::live)),
        open("/v1/health/ready", get(health::ready)),
        keyed("/metrics", GET, get(health::metrics)),
        keyed("/v1/models", GET, get(openai::models::list)),
        keyed("/v1/models/{model}", GET, get(openai::models::one)),
        keyed("/v1/audio/speech", POST, post(openai::speech::speak)),
        keyed("/v1/audio/voices", BOTH, get(openai::voices::list).post(openai::voices::add)),
        keyed("/v1/audio/voices/{name}", &["DELETE"], axum::routing::delete(openai::voices::remove)),
        keyed("/v1/audio/transcriptions", POST, post(openai::transcriptions::transcribe)),
        keyed("/v1/audio/jobs", BOTH, get(jobs::list).post(jobs::submit)),
        keyed("/v1/audio/jobs/{id}", &["DELETE", "GET"], get(jobs::get).delete(jobs::remove)),
        keyed("/v1/audio/jobs/{id}/events", GET, get(jobs::events)),
        keyed("/v1/audio/jobs/{id}/result", GET, get(jobs::result)),
        keyed("/v1/realtime", GET, get(openai::realtime::connect)),
        keyed("/v1/audio/translations", POST, post(openai::translations)),
        keyed(moshi::info::ASR_PATH, BOTH, asr_route()),
        keyed(moshi::info::TTS_PATH, BOTH, tts_route()),
        keyed(moshi::info::CHAT_PATH, GET, get(moshi::chat::connect)),
        open("/api/build_info", get(moshi::info::build)),
        keyed("/api/modules_info", GET, get(moshi::info::modules)),
        keyed("/v1/listen", BOTH, get(deepgram::connect).post(deepgram::file)),
        // Open to keys, not to everybody: parcels are sealed, and taken with a word.
        Route {
            path: "/v1/handover/{id}",
            methods: &["PUT", "DELETE"],
            open: true,
            handler: axum::routing::put(handover::door::put).delete(handover::door::take),
        },
        keyed("/v2/decode/stream/{model}", GET, get(rnnt_v2::connect)),
        keyed("/v2/decode/batch/{model}", POST, post(rnnt_v2::batch)),
    ]
}

/// The router with its layers, the outermost last.
pub(crate) fn router(state: AppState, echoes: bool) -> Router {
    let table = table();
    let is_new = |mount: &&Mount| !table.iter().any(|r| r.path == mount.path);
    let routes = state
        .mounts
        .iter()
        .filter(is_new)
        .fold(Router::new(), |router, mount| router.route(&mount.path, mounted_route(mount.serves)));
    let own_page = static_files::has_index(state.options.static_dir.as_deref());
    let table = table.into_iter().filter(|r| !own_page || r.path != "/");
    let routes = table.fold(routes, |router, r| router.route(r.path, r.handler));
    let routes = if echoes { routes.route(echo::PATH, get(echo::connect)) } else { routes };
    routes
        .fallback(static_files::serve)
        .method_not_allowed_fallback(watch::bad_method)
        .layer(from_fn_with_state(state.clone(), watch::not_draining))
        .layer(from_fn_with_state(state.clone(), auth::check))
        .layer(from_fn_with_state(state.clone(), origin::check))
        .layer(from_fn_with_state(state.clone(), watch::request))
        .with_state(state)
}
