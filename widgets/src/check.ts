/** Whether a message has the form that the protocol gives it. */

export type Buffer = ArrayBuffer | ArrayBufferView;

/** A message that is not of the protocol's form. */
export class WireError extends Error {
  override name = 'WireError';
}

export type Json = Record<string, unknown>;

export function object(value: unknown, what: string): Json {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new WireError(`${what} is not an object.`);
  }
  return value as Json;
}

export function need(json: Json, what: string, numbers: string, texts = '', lists = ''): void {
  const check = (names: string, fits: (value: unknown) => boolean, kind: string): void => {
    for (const name of names.split(' ')) {
      if (name !== '' && !fits(json[name])) {
        throw new WireError(`${what}: ${name} is not ${kind}.`);
      }
    }
  };
  check(numbers, value => typeof value === 'number', 'a number');
  check(texts, value => typeof value === 'string', 'text');
  check(lists, value => Array.isArray(value), 'a list');
}

/** The bytes of a buffer, copied so that typed arrays of any item size can start at their first byte. */
export function bytes(buffer: Buffer | undefined, what: string): ArrayBuffer {
  if (buffer === undefined) {
    throw new WireError(`${what}: a buffer is missing.`);
  }
  if (buffer instanceof ArrayBuffer) {
    return buffer;
  }
  const start = buffer.byteOffset;
  return buffer.buffer.slice(start, start + buffer.byteLength) as ArrayBuffer;
}

export function floats<T>(
  type: { new (data: ArrayBuffer): T; readonly BYTES_PER_ELEMENT: number },
  buffer: Buffer | undefined,
  count: number,
  what: string
): T {
  const data = bytes(buffer, what);
  if (data.byteLength !== count * type.BYTES_PER_ELEMENT) {
    throw new WireError(
      `${what}: ${data.byteLength} bytes where ${count * type.BYTES_PER_ELEMENT} are due.`
    );
  }
  return new type(data);
}

export function decodeText(buffer: Buffer | undefined, what: string): string {
  return new TextDecoder().decode(bytes(buffer, what));
}
