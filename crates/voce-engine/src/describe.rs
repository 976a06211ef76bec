//! What a model is and what it needs, told from its files or its catalogue entry without loading weights.

use serde_json::{Map, Value};
use voce_nn::Formats;
use voce_nn::weights::SafetensorsFile;
use voce_runtime::{AttentionKind, AttentionShape, Format};

use crate::EngineError;
use crate::family;
use crate::store::catalogue::{self, Entry, Extra, Shape};
use crate::store::{Identity, Located, Reference, Store, StoreError, Task};

/// What kind of weights a part has, by which a precision chooses their format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Large layers that every step reads.
    Backbone,
    /// Smaller linear layers around them.
    Linear,
    /// Convolutions.
    Conv,
    /// Convolutions that make samples of a codec's latents.
    Codec,
    /// Tables of embeddings.
    Embedding,
}

impl Role {
    /// The format of such weights.
    pub fn format(self, formats: &Formats) -> Format {
        match self {
            Role::Backbone => formats.backbone,
            Role::Linear => formats.linear,
            Role::Conv => formats.conv,
            Role::Codec => formats.codec.format,
            Role::Embedding => formats.embedding,
        }
    }
}

/// A part of a model; those that run for every frame have the names of its [stages](crate::stage).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartInfo {
    /// The name.
    pub name: &'static str,
    /// Its parameters.
    pub parameters: u64,
    /// What kind of weights they are.
    pub role: Role,
    /// How often a second of one stream reads all of them; none where what is said decides.
    pub reads_per_second: Option<f64>,
    /// Whether it is in memory all the time, and not only while a voice is cloned.
    pub resident: bool,
}

impl PartInfo {
    fn bytes(&self, formats: &Formats) -> f64 {
        self.parameters as f64 * self.role.format(formats).bits() / 8.0
    }
}

/// Attention of a part of a model, for one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionInfo {
    /// The part.
    pub name: &'static str,
    /// What rows see.
    pub kind: AttentionKind,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Rows of a step.
    pub rows: usize,
    /// Positions that a row sees at most.
    pub positions: usize,
}

impl AttentionInfo {
    /// What decides which kernel runs it for one stream, with keys and values in these formats.
    pub fn shape(&self, formats: &Formats) -> AttentionShape {
        let AttentionInfo { kind, heads, kv_heads, head_dim, rows, positions, .. } = *self;
        AttentionShape { kind, format: formats.kv, heads, kv_heads, head_dim, streams: 1, rows, positions }
    }
}

/// What a model is.
#[derive(Clone, Debug)]
pub struct Description {
    /// Its family and its task.
    pub identity: Identity,
    /// Its entry in the catalogue.
    pub entry: Option<&'static Entry>,
    /// Its files; none if it is not on this machine.
    pub located: Option<Located>,
    /// Languages that it speaks, or that it can be told to hear; empty where none are stated.
    pub languages: Vec<String>,
    /// Parts, largest work first.
    pub parts: Vec<PartInfo>,
    /// Its attention, part by part.
    pub attention: Vec<AttentionInfo>,
    /// Frames in a second of audio, where known.
    pub frame_rate: Option<f64>,
    /// Facts for people: a label and a text each.
    pub facts: Vec<(&'static str, String)>,
    /// The same for programs, by key.
    pub values: Map<String, Value>,
}

impl Description {
    fn new(identity: Identity, entry: Option<&'static Entry>, located: Option<Located>) -> Self {
        let languages = entry.map_or(&[][..], |entry| entry.languages);
        Self {
            identity,
            entry,
            located,
            languages: languages.iter().map(|&language| language.to_owned()).collect(),
            parts: Vec::new(),
            attention: Vec::new(),
            frame_rate: None,
            facts: Vec::new(),
            values: Map::new(),
        }
    }

    pub(crate) fn value(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Parameters of all parts; of a model that is not here, as the catalogue has it.
    pub fn parameters(&self) -> u64 {
        let counted = self.parts.iter().map(|part| part.parameters).sum();
        if self.parts.is_empty() { self.entry.map_or(counted, |entry| entry.parameters) } else { counted }
    }

    /// About how many bytes of weights a loaded model keeps in memory.
    pub fn resident_bytes(&self, formats: &Formats) -> u64 {
        let resident = self.parts.iter().filter(|part| part.resident);
        resident.map(|part| part.bytes(formats)).sum::<f64>() as u64
    }

    /// About how many bytes of weights a second of one stream reads.
    pub fn bytes_per_second(&self, formats: &Formats) -> f64 {
        self.parts.iter().filter_map(|part| Some(part.bytes(formats) * part.reads_per_second?)).sum()
    }

    /// About how many bytes of weights a frame of one stream reads.
    pub fn frame_bytes(&self, formats: &Formats) -> u64 {
        self.frame_rate.map_or(0, |rate| (self.bytes_per_second(formats) / rate) as u64)
    }
}

/// Says what a reference is: from its files, or from the catalogue for a model that was not pulled.
pub fn describe(store: &Store, reference: &str) -> Result<Description, EngineError> {
    let parsed = Reference::parse(reference)?;
    let (located, entry) = match (store.locate(&parsed), parsed) {
        (Ok(located), _) => {
            let entry = located.entry;
            (Some(located), entry)
        }
        (Err(StoreError::NotPulled { .. }), Reference::Catalogue { entry, .. }) => (None, Some(entry)),
        (Err(error), _) => return Err(error.into()),
    };
    let identity = store.identify(reference)?;
    let mut description = Description::new(identity, entry, located);
    match &description.located {
        Some(_) if description.identity.runs() => {
            family::describe_files(&mut description, store, reference)?;
        }
        Some(_) => count_tensors(&mut description)?,
        None => of_entry(&mut description)?,
    }
    Ok(description)
}

/// Says what a shape with random weights is.
pub fn describe_shape(task: Task, name: &str) -> Result<Description, EngineError> {
    let shape: &Shape = crate::shape(task, name)?;
    let entry = shape.like.and_then(catalogue::find);
    let identity = Identity::of_shape(shape);
    let mut description = Description::new(identity, entry, None);
    family::describe_shape(&mut description, shape)?;
    Ok(description)
}

/// What the catalogue says of a model that is not here.
fn of_entry(description: &mut Description) -> Result<(), EngineError> {
    let Some(entry) = description.entry else { return Ok(()) };
    match entry.extra {
        Extra::Hearing { head, streaming, .. } => {
            description.facts.push(("head", head.to_owned()));
            let hears = if streaming { "chunk by chunk" } else { "whole utterances" };
            description.facts.push(("hears", hears.to_owned()));
            description.value("head_type", head);
            description.value("offline", !streaming);
            Ok(())
        }
        _ => family::describe_entry(description, entry),
    }
}

/// The size of a model that this build cannot run, or of a codec.
fn count_tensors(description: &mut Description) -> Result<(), EngineError> {
    let mut parameters = 0;
    for path in description.located.iter().flat_map(|located| &located.weights) {
        let file = SafetensorsFile::open(path)?;
        parameters += file.tensors().map(|(_, shape)| count(shape)).sum::<u64>();
    }
    let weights = PartInfo {
        name: "weights",
        parameters,
        role: Role::Backbone,
        reads_per_second: None,
        resident: true,
    };
    description.parts.push(weights);
    let state = match description.identity.task {
        Some(_) => "this build cannot run it yet",
        None => "a codec: `voce codec` uses it by itself",
    };
    description.facts.push(("state", state.to_owned()));
    Ok(())
}

/// Values of a tensor.
pub(crate) fn count(shape: &[usize]) -> u64 {
    shape.iter().map(|&n| n as u64).product()
}

#[cfg(test)]
mod tests {
    use super::*;
    use voce_nn::Precision;
    use voce_runtime::Isa;

    #[test]
    fn every_catalogue_entry_is_described_without_its_files() {
        let home = tempfile::tempdir().unwrap();
        let settings = crate::store::Settings::from_vars(|name| (name == "HOME").then(|| home.path().into()));
        let store = Store::new(settings.unwrap());
        for entry in catalogue::entries() {
            let described = describe(&store, entry.alias).unwrap();
            assert_eq!(described.parameters(), entry.parameters, "{}", entry.alias);
            assert!(described.located.is_none() && !described.facts.is_empty());
            assert_eq!(described.languages, entry.languages);
        }
    }

    #[test]
    fn shapes_weigh_less_at_lower_precision() {
        for task in [Task::Speech, Task::Hearing] {
            for shape in crate::shapes(task) {
                let described = describe_shape(task, shape).unwrap();
                assert!(!described.attention.is_empty(), "{shape}");
                for attention in &described.attention {
                    let formats = Formats::new(Precision::F32, Isa::Scalar);
                    assert_eq!(attention.shape(&formats).on_cpu(Isa::Scalar), "panels_f32", "{shape}");
                }
                assert_eq!(described.identity.task, Some(task));
                let [f32, int8, int4] = [Precision::F32, Precision::Int8, Precision::Int4]
                    .map(|p| Formats::new(p, Isa::Scalar))
                    .map(|formats| (described.resident_bytes(&formats), described.frame_bytes(&formats)));
                assert!(f32.0 > int8.0 && int8.0 > int4.0, "{shape}");
                assert!(f32.1 > int8.1 && int8.1 > int4.1 && int4.1 > 0, "{shape}");
            }
        }
    }
}
