import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads lines of "class version hex", lets Apache Kafka read and write that message, and prints a line of "hex json" for each:
 * the bytes Kafka writes, and the fields it read. An error is printed as "error ...". "new" instead of hex: a new message.
 */
public class KafkaMessages {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            try {
                out.append(answer(parts[0], Short.parseShort(parts[1]), parts[2]));
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                out.append("error ").append(String.valueOf(cause).replace('\n', ' '));
            }
            out.append('\n');
        }
        System.out.print(out);
    }

    private static String answer(String name, short version, String hex) throws Exception {
        Message message = (Message) Class.forName(name).getDeclaredConstructor().newInstance();
        if (!hex.equals("new")) {
            ByteBuffer buffer = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
            message.read(new ByteBufferAccessor(buffer), version);
            if (buffer.hasRemaining()) {
                return "error " + buffer.remaining() + " bytes are left";
            }
        }
        ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] again = new byte[written.remaining()];
        written.get(again);
        Method toJson = Class.forName(name + "JsonConverter").getMethod("write", message.getClass(), short.class, boolean.class);
        JsonNode json = (JsonNode) toJson.invoke(null, message, version, false);
        return HexFormat.of().formatHex(again) + " " + json;
    }
}
