//! The one table of routes: the router is built from it, and the test that walks it proves that each needs a key.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use super::state::AppState;
use super::{auth, echo, health, origin, watch};
use crate::{deepgram, moshi, openai, page, rnnt_v2};

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
        keyed("/v1/realtime", GET, get(openai::realtime::connect)),
        keyed("/v1/audio/translations", POST, post(openai::translations)),
        keyed(moshi::info::ASR_PATH, BOTH, asr_route()),
        keyed(moshi::info::TTS_PATH, BOTH, tts_route()),
        open("/api/build_info", get(moshi::info::build)),
        keyed("/api/modules_info", GET, get(moshi::info::modules)),
        keyed("/v1/listen", BOTH, get(deepgram::connect).post(deepgram::file)),
        keyed("/v2/decode/stream/{model}", GET, get(rnnt_v2::connect)),
        keyed("/v2/decode/batch/{model}", POST, post(rnnt_v2::batch)),
    ]
}

/// The router with its layers, the outermost last.
pub(crate) fn router(state: AppState, echoes: bool) -> Router {
    let table = table();
    let is_new = |path: &&String| {
        path.starts_with('/') && !path.contains(['{', '*']) && !table.iter().any(|r| r.path == **path)
    };
    let asr = state.options.asr_paths.iter().filter(is_new).map(|p| (p.clone(), asr_route()));
    let tts = state.options.tts_paths.iter().filter(is_new).map(|p| (p.clone(), tts_route()));
    let further: std::collections::BTreeMap<_, _> = asr.chain(tts).collect();
    let routes =
        further.into_iter().fold(Router::new(), |router, (path, handler)| router.route(&path, handler));
    let routes = table.into_iter().fold(routes, |router, r| router.route(r.path, r.handler));
    let routes = if echoes { routes.route(echo::PATH, get(echo::connect)) } else { routes };
    routes
        .fallback(watch::not_found)
        .method_not_allowed_fallback(watch::bad_method)
        .layer(from_fn_with_state(state.clone(), watch::not_draining))
        .layer(from_fn_with_state(state.clone(), auth::check))
        .layer(from_fn_with_state(state.clone(), origin::check))
        .layer(from_fn_with_state(state.clone(), watch::request))
        .with_state(state)
}
