//! Which languages a recogniser hears that is not told: what its configuration lists, else what is known of the published
//! model.

use serde::Deserialize;

use crate::store::Located;
use crate::store::catalogue::Extra;

/// What `config.json` may say beside the model's shape.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    languages: Vec<String>,
}

/// Languages of a recogniser with these files, by the text of its `config.json` where it has one.
pub(super) fn languages(located: &Located, json: Option<&str>) -> Vec<String> {
    let listed = json.and_then(|json| serde_json::from_str(json).ok()).map(|listed: Listed| listed.languages);
    if let Some(listed) = listed.filter(|listed| !listed.is_empty()) {
        return listed;
    }
    match located.published().map(|entry| entry.extra) {
        Some(Extra::Hearing { codes, .. }) => codes.iter().map(|code| (*code).to_owned()).collect(),
        _ => Vec::new(),
    }
}
