// Writes the page's types of messages from the JSON Schema on stdin (`make protocol`).
import { stdin, stdout } from 'node:process';
import { json } from 'node:stream/consumers';
import { compile } from 'json-schema-to-typescript';
import { format, resolveConfig } from 'prettier';

const BANNER = `/** The messages between kernel and page; \`make protocol\` makes them from kernel_monitor/protocol. */
`;

const { constants, schema } = await json(stdin);

const source = await compile(schema, 'Protocol', {
  additionalProperties: false,
  bannerComment: BANNER,
  format: false,
  unreachableDefinitions: true
});
const types = source
  .replaceAll(
    /\n ?\*\s*\n ?\* This interface was referenced by .*\n ?\* via the `definition` .*/g,
    ''
  )
  .replace(/export interface Protocol \{[^}]*\}\n/, '')
  .replaceAll(/^( *)(\w+\??: )/gm, '$1readonly $2')
  .replaceAll(/: (\w+)\[\]/g, ': readonly $1[]')
  .replaceAll(/: \{\s*\[k: string\]: ([^;}]+?);?\s*\}/g, ': Readonly<Record<string, $1>>')
  .replaceAll(/^( *)\[k: string\]/gm, '$1readonly [k: string]');

/** How `message_check.ts` checks a field: a type's name, then `[]` for a list, `{}` for a map, `?` if it may be null. */
function form({ $ref, anyOf, items, type, additionalProperties, enum: texts }) {
  if ($ref) return $ref.split('/').at(-1);
  if (anyOf) return `${form(anyOf[0])}?`;
  if (type === 'array') return `${form(items)}[]`;
  if (type === 'object') return `${form(additionalProperties)}{}`;
  return texts ? 'string' : type === 'integer' ? 'number' : (type ?? 'unknown');
}

/** The types that a page receives, with those of their parts. */
const received = new Map();
function receive(name) {
  if (received.has(name)) return;
  const { properties, required = [] } = schema.$defs[name];
  const fields = Object.entries(properties).map(([field, value]) => [field, form(value)]);
  received.set(
    name,
    fields
      .map(([field, kind]) => `${field}${required.includes(field) ? '' : '?'}:${kind}`)
      .join(' ')
  );
  const parts = fields.map(([, kind]) => kind.match(/^\w+/)[0]);
  parts.filter(part => part in schema.$defs).forEach(receive);
}
Object.keys(schema.$defs)
  .filter(name => /^(EmbeddedSession|Frame|Glance|Notice|\w+Reply)$/.test(name))
  .forEach(receive);

const text = [
  types,
  ...Object.entries(constants).map(
    ([name, value]) => `export const ${name} = ${JSON.stringify(value)};`
  ),
  '/** Types that a page receives. */',
  `export interface Received { ${[...received.keys()].map(name => `readonly ${name}: ${name};`).join('\n')} }`,
  '/** Their fields, for `message_check.ts`. */',
  `export const FIELDS: Readonly<Record<string, string>> = ${JSON.stringify(Object.fromEntries(received))};`
].join('\n');
const config = await resolveConfig(import.meta.filename);
stdout.write(await format(text, { ...config, parser: 'typescript' }));
