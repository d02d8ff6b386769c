//! Statistics as a safetensors file, in the container of the artifact: sorted, with a digest, and
//! written at once or not at all. Exact sums are pairs of U64, lower half first.

use std::borrow::Cow;
use std::path::Path;

use safetensors::tensor::Dtype;
use sha2::{Digest, Sha256};

use super::fixed::{Fixed, MAX_CONTRIBUTIONS};
use super::histogram::BINS;
use super::moments::triangle;
use super::sample::{Place, Sample, Token};
use super::{HeadStatistics, Histogram, LayerStatistics, Moments, Statistics, StatisticsConfig};
use crate::calibration::container::{self, DAMAGED, RawTensor, Strings, Tensors};
use crate::calibration::file::{read_file, write_file};
use crate::error::{Error, Result};

const FORMAT: &str = "burn-oscar-statistics";
const VERSION: &str = "2";
/// No model has as many, and made-up sizes stop here.
const MAX_SIZE: usize = 1 << 20;

impl Statistics {
    /// Writes the file, at once or not at all. The same statistics always give the same bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be written; `path` is then as it was.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        write_file(path.as_ref(), &self.to_bytes()?)
    }

    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::Artifact`] if it is damaged or of another
    /// version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path.as_ref()).map(|(statistics, _)| statistics)
    }

    /// Also the metadata, notes among them.
    pub(crate) fn load_with(path: &Path) -> Result<(Self, Strings)> {
        Self::from_bytes(&read_file(path)?).map_err(|reason| Error::Artifact {
            path: path.to_path_buf(),
            reason,
        })
    }

    /// SHA-256 of the file's bytes without notes, hexadecimal: it tells the model, the texts and all
    /// that was observed.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes).
    pub fn digest(&self) -> Result<String> {
        Ok(format!("{:x}", Sha256::digest(self.to_bytes()?)))
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`Error::Calibration`] if the header cannot be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.to_bytes_with(Strings::new())
    }

    /// With notes in the metadata, which reading ignores.
    pub(crate) fn to_bytes_with(&self, notes: Strings) -> Result<Vec<u8>> {
        let mut tensors = Tensors::new();
        for (index, layer) in self.layers.iter().enumerate() {
            write_layer(&mut tensors, index, layer, &self.config);
        }
        let config = &self.config;
        let mut metadata: Strings = [
            ("format", FORMAT.to_string()),
            ("version", VERSION.to_string()),
            ("model_fingerprint", config.fingerprint.clone()),
            ("layers", config.n_layers.to_string()),
            ("kv_heads", config.n_kv_heads.to_string()),
            ("head_dim", config.head_dim.to_string()),
            ("sinks", config.sinks.to_string()),
            ("block", config.block.to_string()),
            ("sample", config.sample.to_string()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_string(), value))
        .chain(notes)
        .collect();
        metadata.insert("sha256".into(), container::digest(&metadata, &tensors));
        container::join(metadata, tensors).map_err(|error| Error::Calibration {
            reason: format!("the header of the statistics cannot be written: {error}"),
        })
    }

    fn from_bytes(file: &[u8]) -> Read<(Self, Strings)> {
        let (metadata, tensors) = container::split(file)?;
        let text = |key: &str| metadata.get(key).map_or("(none)", String::as_str);
        if text("format") != FORMAT || text("version") != VERSION {
            return Err(format!(
                "it is `{}` version {}, expected `{FORMAT}` version {VERSION}: give statistics that \
                 this library wrote",
                text("format"),
                text("version")
            ));
        }
        let found = container::digest(&metadata, &tensors);
        if text("sha256") != found {
            return Err(format!(
                "its contents have SHA-256 {found} and should have {}: {DAMAGED}",
                text("sha256")
            ));
        }
        let number = |key: &str| -> Read<usize> {
            let value = text(key);
            let number = value.parse().ok().filter(|number| *number <= MAX_SIZE);
            number.ok_or_else(|| {
                format!("its `{key}` is `{value}`, not a number up to {MAX_SIZE}: observe again")
            })
        };
        let config = StatisticsConfig {
            fingerprint: text("model_fingerprint").to_string(),
            n_layers: number("layers")?,
            n_kv_heads: number("kv_heads")?,
            head_dim: number("head_dim")?,
            sinks: number("sinks")?,
            block: number("block")?,
            sample: number("sample")?,
        };
        config
            .validate()
            .map_err(|error| format!("{error}: observe again"))?;
        let mut reader = Reader(tensors);
        let layers = (0..config.n_layers)
            .map(|layer| reader.layer(layer, &config))
            .collect::<Read<_>>()?;
        match reader.0.keys().next() {
            Some(name) => Err(format!(
                "`{name}` is not a tensor of version {VERSION}: observe again"
            )),
            None => Ok((Self { config, layers }, metadata)),
        }
    }
}

fn write_layer(
    tensors: &mut Tensors,
    index: usize,
    layer: &LayerStatistics,
    config: &StatisticsConfig,
) {
    let (heads, d) = (config.n_kv_heads, config.head_dim);
    let mut put = |name: &str, dtype, shape: Vec<usize>, bytes: Vec<u8>| {
        let bytes = Cow::Owned(bytes);
        let name = format!("layers.{index}.{name}");
        tensors.insert(
            name,
            RawTensor {
                dtype,
                shape,
                bytes,
            },
        );
    };
    let counts = [
        layer.tokens,
        layer.sequences,
        layer.longest,
        layer.query_heads as u64,
        layer.contributions,
        layer.scale.to_bits(),
    ];
    put("counts", Dtype::U64, vec![counts.len()], word_bytes(counts));
    for (i, (name, _)) in layer.heads[0].moments().iter().enumerate() {
        let all = || layer.heads.iter().map(|head| head.moments()[i].1);
        let numbers = all().flat_map(|moments| moments.numbers());
        let shape = vec![heads, 1 + d + triangle(d), 2];
        put(name, Dtype::U64, shape, fixed_bytes(numbers));
    }
    let norms = |of: fn(&HeadStatistics) -> &Histogram| {
        word_bytes(layer.heads.iter().flat_map(|head| of(head).0.clone()))
    };
    let shape = vec![heads, BINS];
    let key_norms = norms(|head| &head.key_norms);
    put("key_norms", Dtype::U64, shape.clone(), key_norms);
    put(
        "value_norms",
        Dtype::U64,
        shape,
        norms(|head| &head.value_norms),
    );

    let sample = &layer.sample.0;
    let n = sample.len();
    let places = sample.keys().flat_map(|place| [place.text, place.position]);
    put(
        "sample.places",
        Dtype::U64,
        vec![n, 2],
        word_bytes(places.collect::<Vec<_>>()),
    );
    let floats = |of: fn(&Token) -> &[f32]| {
        let numbers = sample.values().flat_map(|token| of(token).iter());
        numbers.flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()
    };
    let keys = floats(|token| &token.keys);
    put("sample.keys", Dtype::F32, vec![n, heads, d], keys);
    let values = floats(|token| &token.values);
    put("sample.values", Dtype::F32, vec![n, heads, d], values);
    let weights = sample.values().flat_map(|token| token.weights.clone());
    let weights = fixed_bytes(weights);
    put("sample.weights", Dtype::U64, vec![n, heads, 2], weights);
}

type Read<T> = std::result::Result<T, String>;

/// Takes tensors out by name, so that what is left at the end does not belong there.
struct Reader<'a>(Tensors<'a>);

impl Reader<'_> {
    fn layer(&mut self, index: usize, config: &StatisticsConfig) -> Read<LayerStatistics> {
        let (heads, d) = (config.n_kv_heads, config.head_dim);
        let name = |name: &str| format!("layers.{index}.{name}");
        let counts = self.words(&name("counts"), &[6])?;
        let mut layer = LayerStatistics::empty(config);
        layer.tokens = counts[0];
        layer.sequences = counts[1];
        layer.longest = counts[2];
        layer.query_heads = counts[3] as usize;
        layer.contributions = counts[4];
        layer.scale = f64::from_bits(counts[5]);
        if layer.contributions > MAX_CONTRIBUTIONS || !layer.scale.is_finite() {
            return Err(format!(
                "`{}` holds {counts:?}, more calls than {MAX_CONTRIBUTIONS} or no scale: observe \
                 again",
                name("counts")
            ));
        }
        let names = layer.heads[0].moments().map(|(name, _)| name);
        for (i, moments) in names.into_iter().enumerate() {
            let name = name(moments);
            let size = 1 + d + triangle(d);
            let numbers = self.fixed(&name, &[heads, size, 2], layer.contributions)?;
            for (head, numbers) in layer.heads.iter_mut().zip(numbers.chunks_exact(size)) {
                let (sum, second) = numbers[1..].split_at(d);
                *head.moments_mut()[i] =
                    Moments::from_parts(numbers[0], sum.to_vec(), second.to_vec());
            }
        }
        let key_norms = self.words(&name("key_norms"), &[heads, BINS])?;
        let value_norms = self.words(&name("value_norms"), &[heads, BINS])?;
        let bins = key_norms
            .chunks_exact(BINS)
            .zip(value_norms.chunks_exact(BINS));
        for (head, (keys, values)) in layer.heads.iter_mut().zip(bins) {
            head.key_norms = Histogram(keys.to_vec());
            head.value_norms = Histogram(values.to_vec());
        }
        layer.sample = self.sample(&name, config, layer.contributions)?;
        Ok(layer)
    }

    fn sample(
        &mut self,
        name: &dyn Fn(&str) -> String,
        config: &StatisticsConfig,
        contributions: u64,
    ) -> Read<Sample> {
        let (heads, d) = (config.n_kv_heads, config.head_dim);
        let n = self
            .0
            .get(&name("sample.places"))
            .and_then(|tensor| tensor.shape.first().copied())
            .unwrap_or(0);
        if n > config.sample {
            return Err(format!(
                "it has {n} sampled tokens and says at most {}: observe again",
                config.sample
            ));
        }
        let places = self.words(&name("sample.places"), &[n, 2])?;
        let keys = self.floats(&name("sample.keys"), &[n, heads, d])?;
        let values = self.floats(&name("sample.values"), &[n, heads, d])?;
        let shape = [n, heads, 2];
        let weights = self.fixed(&name("sample.weights"), &shape, contributions)?;
        let mut sample = Sample::default();
        for i in 0..n {
            let token = Token {
                keys: keys[i * heads * d..][..heads * d].to_vec(),
                values: values[i * heads * d..][..heads * d].to_vec(),
                weights: weights[i * heads..][..heads].to_vec(),
            };
            let place = Place::new(places[2 * i], places[2 * i + 1], &token);
            sample.0.insert(place, token);
        }
        if sample.0.len() == n {
            Ok(sample)
        } else {
            Err("it has a sampled token twice: observe again".into())
        }
    }

    fn words(&mut self, name: &str, shape: &[usize]) -> Read<Vec<u64>> {
        let bytes = self.take(name, Dtype::U64, shape)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    fn fixed(&mut self, name: &str, shape: &[usize], contributions: u64) -> Read<Vec<Fixed>> {
        let words = self.words(name, shape)?;
        let (pairs, _) = words.as_chunks::<2>();
        let numbers: Vec<_> = pairs.iter().map(|pair| Fixed::from_words(*pair)).collect();
        if numbers.iter().all(|number| number.fits(contributions)) {
            Ok(numbers)
        } else {
            Err(format!(
                "`{name}` holds more than {contributions} calls can add up to: observe again"
            ))
        }
    }

    fn floats(&mut self, name: &str, shape: &[usize]) -> Read<Vec<f32>> {
        let bytes = self.take(name, Dtype::F32, shape)?;
        let (words, _) = bytes.as_chunks::<4>();
        let numbers: Vec<_> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        if numbers.iter().all(|x| x.is_finite()) {
            Ok(numbers)
        } else {
            Err(format!(
                "`{name}` holds numbers that are not finite: observe again"
            ))
        }
    }

    fn take(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Read<Vec<u8>> {
        let Some(tensor) = self.0.remove(name) else {
            return Err(format!("it has no `{name}`: observe again"));
        };
        if tensor.dtype != dtype || tensor.shape != shape {
            return Err(format!(
                "`{name}` is {} {:?}, expected {dtype} {shape:?}: observe again",
                tensor.dtype, tensor.shape
            ));
        }
        Ok(tensor.bytes.into_owned())
    }
}

fn word_bytes(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn fixed_bytes(numbers: impl Iterator<Item = Fixed>) -> Vec<u8> {
    word_bytes(numbers.flat_map(Fixed::to_words))
}
